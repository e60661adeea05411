"""A site says in its own file who may receive its models at most, and no job can have more."""

import json

import pytest

from autofedavg import read_study
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.server import host
from autofedavg.engines.remote.site_files import read_site_file
from autofedavg.federation.messages import Message, arrays_of
from deployed import InProcessTransport, job_of
from hospitals import build_hospitals
from private_site import SiteProcess

BLIND = "method={ name = 'auto-fedavg', learning = 'blind', t0 = 1 }"
FEDAVG = "method={ name = 'fedavg' }"
OWN = "test_local='own'"
KINDS = {
    "clients": (["method.learning='clients'"], "sites"),
    "fedavg, tested everywhere": ([FEDAVG], "sites"),
    "fedavg": ([FEDAVG, OWN], "server"),
    "fedavg with a ceiling": ([FEDAVG, OWN, "ceiling=[1]"], "sites"),
    "blind": ([BLIND], "nobody"),
}
HELLO = Message({}, {})
WORDS = {"nobody": "nobody", "server": "the server alone", "sites": "all sites"}


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    return build_hospitals(tmp_path / "world")


def allow(file, most: str) -> None:
    file.write_text(f'show_models = "{most}"\n' + file.read_text())


@pytest.mark.parametrize("most", WORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_site_takes_part_where_its_models_go_no_further(most, kind, hospitals, tmp_path):
    study, files = hospitals
    changes, shown = KINDS[kind]
    allow(files["west"], most)
    job = job_of(read_study(study, changes), "auto-fedavg")
    transport = InProcessTransport(job, files)
    if [*WORDS].index(shown) <= [*WORDS].index(most):
        assert transport.services["west"].answer("hello", HELLO).facts["cases"]["train"] > 0
        return
    refused = f"site west, joining: it cannot take part: this site's models may go to {WORDS[most]}"
    refused += f', and the job\'s go to {WORDS[shown]}: set method.learning = "blind"'
    with pytest.raises(ConfigError, match=refused) as error:
        host(job, transport, tmp_path / "runs")
    assert ('test_local = "own"' in str(error.value)) == (most == "server")


def test_a_site_that_shows_its_models_to_nobody_never_trains_without_a_mask(hospitals, tmp_path):
    """A real process, and a server that submits a blind job and then asks for a plain model."""
    study, files = hospitals
    allow(files["north"], "nobody")
    job = job_of(read_study(study, [BLIND]), "auto-fedavg")
    path = tmp_path / "job.json"
    path.write_text(job.text())
    w0, _ = job.row.task.problem().initial(Seeds(0))
    site = SiteProcess(path, "north", files["north"])
    try:
        assert "error" not in site.ask("hello", HELLO).facts
        answer = site.ask("local_train", Message(arrays_of(w0), {"t": 1, "T": 2}))
    finally:
        site.kill()
    assert answer.facts == {
        "error": "local_train of round 1 is not asked for by this job without blind"
    }
    assert not answer.arrays


STUDY = """
[base]
rounds = 2
[base.task]
name = "synthetic"
[base.training]
iterations = 2
[[run]]
name = "fedavg"
method = { name = "fedavg" }
[[run]]
name = "fedavg-own"
method = { name = "fedavg" }
test_local = "own"
[[run]]
name = "blind"
method = { name = "auto-fedavg", learning = "blind" }
"""


def test_check_says_to_whom_models_go(say, tmp_path):
    study = tmp_path / "who.toml"
    study.write_text(STUDY)
    code, out, err = say("check", study)
    assert code == 0, err
    said = [line.strip() for line in out.splitlines() if "own models go to" in line]
    assert said == [
        "a site's own models go to the server and all other sites",
        "a site's own models go to the server alone",
        "a site's own models go to nobody: they travel in masked sums",
    ]
    code, out, _ = say("check", study, "--json")
    rows = json.loads(out)["rows"]
    assert [row["models_reach"] for row in rows] == ["sites", "server", "nobody"]


@pytest.mark.parametrize(
    ("changes", "mixed"),
    [
        (["method={ name = 'auto-fedavg', learning = 'server' }", OWN], True),
        (["method={ name = 'fedlaw', learning = 'server' }", OWN], True),
        ([FEDAVG, OWN, "ceiling=[1]"], True),
        (["method={ name = 'auto-fedavg', learning = 'server' }"], False),  # tested everywhere
        (["method={ name = 'auto-fedavg', learning = 'clients' }", OWN], False),
        (["method={ name = 'fedlaw' }", OWN], False),
        (["method={ name = 'ensemble' }", OWN], False),
        ([FEDAVG, "ceiling=[1]"], False),
    ],
)
def test_check_says_where_models_reach_other_sites_as_mixtures_alone(changes, mixed, say, tmp_path):
    study = tmp_path / "who.toml"
    study.write_text(STUDY.partition("[[run]]")[0] + '[[run]]\nname = "row"\n')
    given = [word for change in changes for word in ("--set", change)]
    code, out, err = say("check", study, *given)
    assert code == 0, err
    (said,) = (line.strip() for line in out.splitlines() if "own models go to" in line)
    both = "the server and all other sites"
    mixtures = "the server, and as mixtures, from which they can be computed, to all other sites"
    assert said == f"a site's own models go to {mixtures if mixed else both}"
    (row,) = json.loads(say("check", study, *given, "--json")[1])["rows"]
    assert (row["models_reach"], row["models_mixed"]) == ("sites", mixed)


def test_a_wrong_value_is_refused(hospitals):
    _, files = hospitals
    allow(files["west"], "me")
    with pytest.raises(ConfigError, match="show_models: input should be 'nobody', 'server' or 'si"):
        read_site_file(files["west"])
