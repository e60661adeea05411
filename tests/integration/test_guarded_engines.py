"""Settings that keep something at the sites, in real processes of both engines.

Blind learning whose steps are judged, and differential privacy, with means in place of scores.
"""

import json

import pytest
from tests_tiny import TINY

from autofedavg import read_study, run_study
from deployed import assert_same_run, environment_of

ROWS = """
[base.exchange]
disclose = "means"

[[run]]
name = "judged"
method = { name = "auto-fedavg", learning = "blind", t0 = "auto", start = "sizes" }

[[run]]
name = "private"
method = { name = "auto-fedavg", S = 2, t0 = 2 }

[run.privacy]
theta_clip = 1.0
theta_noise = 2.0
train_clip = 1.0
train_noise = 2.0
"""
SITES = ("I", "II", "III")


def lines_of(run) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "package"),
    [("flare", "nvflare"), pytest.param("flower", "flwr", marks=pytest.mark.slow)],
)
def test_a_study_of_guarded_rows(engine, package, command, say, tmp_path, monkeypatch):
    pytest.importorskip(package, reason=f"the extra `{engine}` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    head = TINY[: TINY.index("[[run]]")].replace('baseline = "fedavg"\n', "")
    study = tmp_path / "guarded.toml"
    study.write_text(head.replace("rounds = 3", 'rounds = 2\ntest_local = "none"') + ROWS)
    here = run_study(read_study(study), tmp_path / "simulated")
    done = command("run", study, "--engine", engine, "--out", tmp_path / "runs", timeout=1780)
    assert done.returncode == 0, done.stderr
    judged, private = (tmp_path / "runs" / "tiny" / row / "seed-0" for row in ("judged", "private"))

    assert environment_of(judged)["engine"] == environment_of(private)["engine"] == engine
    assert_same_run(here / "judged" / "seed-0", judged)
    verdicts = [[line.get("verdict") for line in lines_of(run)]
                for run in (judged, here / "judged" / "seed-0")]  # fmt: skip
    assert verdicts[0] == verdicts[1]
    assert [bool(verdict) for verdict in verdicts[0]] == [False, True]

    for run in (judged, private):  # a line for a site's mean, and none for a case
        header, *rows = (run / "scores.csv").read_text().splitlines()
        assert "cases" in header.split(",")
        assert "case" not in header.split(",")
        assert rows

    # Noise is the site's secret, so no other run has its bits; what it costs is the same.
    _, out, _ = say("check", study, "--json")
    (row,) = [row for row in json.loads(out)["rows"] if row["name"] == "private"]
    forecast = {site: row["privacy"][site]["epsilon"] for site in SITES}
    assert lines_of(private)[-1]["epsilon"] == pytest.approx(forecast, rel=1e-9)
    assert lines_of(here / "private" / "seed-0")[-1]["epsilon"] == pytest.approx(forecast, rel=1e-9)
    ledgers = {path.parent.name: path.read_text() for path in (tmp_path / "state").rglob("*.jsonl")}
    assert set(ledgers) == set(SITES)
    assert all(text.count("\n") == 4 for text in ledgers.values())  # two trainings, two steps
