"""One of the paper's rows, and rows that keep something at the sites, in real processes.

The latter learn blind, with judged steps, or with differential privacy; means replace scores. All
run in one federation, on a task without MONAI: test_flare_intruder.py runs the tiny study.
"""

import json

import pytest

import toy_task
from deployed import assert_same_run, environment_of, nothing_left

ROWS = """
[[run]]
name = "n-dirichlet"
test_local = "auto"
method = { name = "auto-fedavg", S = 2, t0 = 1 }

[[run]]
name = "judged"
exchange = { disclose = "means" }
method = { name = "auto-fedavg", learning = "blind", t0 = "auto", start = "sizes" }

[[run]]
name = "private"
task = { normalised = false }
exchange = { disclose = "means" }
method = { name = "auto-fedavg", S = 2, t0 = 2 }

[run.privacy]
theta_clip = 1.0
theta_noise = 2.0
train_clip = 1.0
train_noise = 2.0
"""
SITES = ("A", "B", "C")


def lines_of(run) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "package"),
    [("flare", "nvflare"), pytest.param("flower", "flwr", marks=pytest.mark.slow)],
)
def test_a_study_of_guarded_rows(engine, package, command, tmp_path, monkeypatch):
    pytest.importorskip(package, reason=f"the extra `{engine}` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", toy_task.install(tmp_path / "installed"))
    study = tmp_path / "guarded.toml"
    head = toy_task.STUDY.replace("rounds = 1", "rounds = 2")
    study.write_text(head.replace('"toy-sites"', f'"toy-sites"\nsites = {len(SITES)}') + ROWS)
    for where in ("simulator", engine):
        how = ("--engine", where, "--threads", 1, "--out", tmp_path / where)
        done = command("run", study, *how, timeout=1780)
        assert done.returncode == 0, done.stderr
    nothing_left(str(tmp_path))
    (plain, same), (judged, known), (private, simulated) = (
        [tmp_path / where / "toys" / row / "seed-0" for where in (engine, "simulator")]
        for row in ("n-dirichlet", "judged", "private")
    )
    assert all(environment_of(run)["engine"] == engine for run in (plain, judged, private))
    assert_same_run(same, plain)
    assert [line["learned"] for line in lines_of(plain)] == [True, True]

    assert_same_run(known, judged)
    verdicts = [[line.get("verdict") for line in lines_of(run)] for run in (judged, known)]
    assert verdicts[0] == verdicts[1]
    assert [bool(verdict) for verdict in verdicts[0]] == [False, True]

    for run in (judged, private):  # a line for a site's mean, and none for a case
        header, *rows = (run / "scores.csv").read_text().splitlines()
        assert "cases" in header.split(",")
        assert "case" not in header.split(",")
        assert rows

    # Noise is the site's secret, so no other run has its bits; what it costs is the same.
    checked = command("check", study, "--json")
    (row,) = [row for row in json.loads(checked.stdout)["rows"] if row["name"] == "private"]
    forecast = {site: row["privacy"][site]["epsilon"] for site in SITES}
    assert lines_of(private)[-1]["epsilon"] == pytest.approx(forecast, rel=1e-9)
    assert lines_of(simulated)[-1]["epsilon"] == pytest.approx(forecast, rel=1e-9)
    ledgers = {path.parent.name: path.read_text() for path in (tmp_path / "state").rglob("*.jsonl")}
    assert set(ledgers) == set(SITES)
    assert all(text.count("\n") == 4 for text in ledgers.values())  # two trainings, two steps
