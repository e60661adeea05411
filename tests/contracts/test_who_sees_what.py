"""The table of SECURITY.md, cell by cell: who sees what, measured on the wire and in memory.

A way of learning is one line of `WAYS` and one column of the table. A setting is one line of
`SETTINGS`.
"""

from pathlib import Path

import pytest

from autofedavg import read_study
from autofedavg.core.errors import ConfigError
from autofedavg.tasks import TASKS
from deployed import job_of
from wiretap import BETA0, CANARY, SITES, Seen, Tapped, tap

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
LEARNS = "name = 'auto-fedavg', constraint = 'softmax', beta_optimiser = 'sgd'"
HIDDEN = f"learning = 'blind', beta0 = {BETA0}"
WAYS = {
    "no learning": "name = 'fedavg'",
    '`"clients"`': f"{LEARNS}, S = 2, t0 = 1",
    '`"server"`': f"{LEARNS}, S = 2, t0 = 1, learning = 'server'",
    '`"blind"`': f"{LEARNS}, t0 = 1, {HIDDEN}",
}
WAYS['`"clients"` with `[privacy]`'] = WAYS['`"clients"`']
NOISE = ["theta_clip=1.0", "theta_noise=2.0", "train_clip=1.0", "train_noise=2.0", "delta=1e-7"]
SETTINGS = {
    '`disclose = "all"`': "exchange.disclose='all'",
    '`disclose = "means"`': "exchange.disclose='means'",
    '`test_local = "none"`': "test_local='none'",
    '`test_local = "own"`': "test_local='own'",
    '`test_local = "full"`': "test_local='full'",
}
# The table's words for what belongs to a site, and what `Tapped` calls it.
THINGS = {
    "images and labels": "images",
    "names of private cases": "names of cases",
    "score of each case": "score of a case",
    "labelled voxels of each case": "size of a case",
    "mean score of its cases": "mean score",
    "number of cases per split": "number of training cases",
    "loss of training": "training loss",
    "local model w_k": "values",
    "its step on beta": "theta",
    "gradient of a mini-batch": "gradient",
    "mixtures of the local models": "mixture",
    "global model w": "w",
}
STUDY = """
[study]
name = "clinics"
[base]
rounds = 3
test_local = "none"
[base.task]
name = "clinics"
[base.training]
iterations = 2
batch_size = 4
optimiser = "sgd"
learning_rate = 0.1
[[run]]
name = "row"
method = {{ {method} }}
"""


def table() -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """The columns, and of every line: what, the setting, and the cells."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in PAGE.splitlines() if line.startswith("|")]  # fmt: skip
    first = next(n for n, line in enumerate(lines) if line[0] == "what of a site")
    rows = []
    for what, setting, *cells in lines[first + 2 :]:
        if len(cells) != len(lines[first]) - 2:
            break
        rows.append((what or rows[-1][0], setting, cells))
    return lines[first][2:], rows


COLUMNS, ROWS = table()


@pytest.fixture(scope="module")
def tapped(tmp_path_factory) -> dict[tuple[str, str], Tapped | None]:
    """Every way of learning with every setting; None where the two are refused."""
    found: dict[tuple[str, str], Tapped | None] = {}
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("tapped")
        patch.setenv("AUTOFEDAVG_STATE", str(home / "state"))
        patch.setitem(TASKS._entries, "clinics", "wiretap:Clinics")
        for way, method in WAYS.items():
            for setting, change in SETTINGS.items():
                study = home / "study.toml"
                study.write_text(STUDY.format(method=method))
                try:
                    noise = [f"privacy.{name}" for name in NOISE] if "[privacy]" in way else []
                    job = job_of(read_study(study, [change, *noise]), "row")
                except ConfigError:
                    found[way, setting] = None
                    continue
                found[way, setting] = tap(job, home / f"runs-{len(found)}")
    return found


def test_the_table_has_all_ways_and_all_things():
    assert [*WAYS] == COLUMNS
    assert [*dict.fromkeys(what for what, _, _ in ROWS)] == [*THINGS]
    assert {setting for _, setting, _ in ROWS} == {"", *SETTINGS}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("what", "setting"), [row[:2] for row in ROWS])
def test_every_cell_is_what_is_seen(what, setting, way, tapped):
    (cells,) = [cells for w, s, cells in ROWS if (w, s) == (what, setting)]
    for each in [setting] if setting else SETTINGS:
        job, cell = tapped[way, each], cells[COLUMNS.index(way)]
        if job or setting:
            assert (job.who(THINGS[what]) if job else "refused") == cell, (what, each)


@pytest.mark.parametrize("noise", [[], NOISE], ids=["plain", "privacy"])
def test_judged_blind_steps_show_no_more(noise, tmp_path, monkeypatch):
    """t0 = "auto": gradients by mini-batch and gains travel as masked sums, too."""
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    monkeypatch.setitem(TASKS._entries, "clinics", "wiretap:Clinics")
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(method=f"{LEARNS}, t0 = 'auto', {HIDDEN}"))
    changes = [f"privacy.{name}" for name in noise]
    job = tap(job_of(read_study(study, changes), "row"), tmp_path / "runs")
    for what, setting, cells in ROWS:
        if setting in ("", '`disclose = "all"`', '`test_local = "none"`'):
            assert job.who(THINGS[what]) == cells[COLUMNS.index('`"blind"`')], what


@pytest.mark.parametrize("way", WAYS)
def test_the_harness_finds_what_is_there(way, tapped):
    """Every thing is found at its own site, so that "nobody" means something."""
    for (column, _), job in tapped.items():
        if column != way or job is None:
            continue
        for site in SITES:
            own = job.own[site]
            for what in ("images", "names of cases", "score of a case", "size of a case", "values"):
                assert own[what]
            assert all(job.sites[site].has(thing) for thing in own["images"]), "in its objects"
            assert way == "no learning" or own["theta" if "server" not in way else "gradient"]
            assert job.server.has(f'"{site}"')
        assert all(CANARY in name for name in job.own["A"]["names of cases"])


def test_a_thing_is_found_however_deep_it_lies():
    class Holder:
        __slots__ = ("inner",)

    holder, word = Holder(), "needle"
    holder.inner = {"a": [(lambda: word)]}
    seen = Seen()
    seen.look([holder])
    assert seen.has("needle")
    assert not seen.has("another")
    deep = (n for n in [word])
    seen.look({"later": deep, 1: 0.125})
    assert seen.has(0.125)
    assert not Seen().has(0.125)
