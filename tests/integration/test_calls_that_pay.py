"""t0 = "auto" through study, simulator, run folder, resume and report."""

import json

import pytest
from test_learning import lines, study

from autofedavg import read_study, resume, run_study
from autofedavg.monitor.trackers.points import round_points
from autofedavg.studies.observer import Observer

AUTO = "S = 2, t0 = 'auto'"
BLIND = "learning = 'blind', t0 = 'auto'"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    rows = {"auto": AUTO, "back": f"{AUTO}, when_idle = 'sizes', learning = 'server'"}
    rows["blind"] = BLIND
    return run_study(read_study(study(folder, **rows)), folder / "runs")


def test_rounds_record_what_a_call_gained_and_when_the_next_is_due(home):
    for row, due in (("auto", 1), ("back", 1), ("blind", 2)):  # blindly, a round late
        rounds = lines(home / row / "seed-0")
        assert rounds[due - 1]["learned"]
        for line in rounds:
            assert line["learned"] == ("verdict" in line) == (line["t"] == due)
            if line["learned"]:
                told, due = line["verdict"], line["verdict"]["next"]
                bound = max(2 * told["error"], 1e-3 * abs(told["gain"]))
                assert told["paid"] == (told["gain"] > bound)
                assert ("to_sizes" in told) == (row == "back")


class Stops(Observer):
    """Ends the process's work after every round, as Ctrl-C does."""

    def round(self, seen):
        raise KeyboardInterrupt


@pytest.mark.parametrize("row", ["auto", "blind"])
def test_a_run_that_stops_after_any_round_goes_on_to_the_same_numbers(row, home, tmp_path):
    """Stopped after each of its three rounds, and resumed."""
    settings = {"auto": AUTO, "blind": BLIND}[row]
    plan, out = read_study(study(tmp_path, **{row: settings})), tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, out, observer=Stops())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            resume(out / "tiny", observer=Stops())
    resume(out / "tiny")
    kept = ("t", "alpha", "beta", "verdict", "learned", "learning_loss", "blind")
    found, whole = (lines(where / row / "seed-0") for where in (out / "tiny", home))
    assert [line["t"] for line in found] == [1, 2, 3]
    for one, other in zip(found, whole, strict=True):
        assert {k: one.get(k) for k in kept} == {k: other.get(k) for k in kept}


def test_check_gives_an_upper_bound_and_says_so(tmp_path, say):
    """Twenty rounds make at most four calls; three sites share two models each in a call.

    Learning blindly they make at most three: the models of nineteen rounds teach.
    """
    rows = {"auto": AUTO, "every": "S = 2", "server": f"{AUTO}, learning = 'server'"}
    rows |= {"blind": f"{BLIND}, sketch = 64", "blindly": "learning = 'blind', sketch = 64"}
    path = study(tmp_path, **rows)
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 20"))
    code, out, _ = say("check", path)
    assert code == 0
    assert "at most 20.0 % more for learning the weights" in out
    assert "traffic at most " in out
    assert " 100.0 % more for learning the weights" in out
    auto, every, server, blind, blindly = (
        r["traffic"] for r in json.loads(say("check", path, "--json")[1])["rows"]
    )
    assert auto["extra"] == pytest.approx(every["extra"] / 5, rel=0.01)
    assert (auto["bound"], every["bound"]) == (True, False)
    assert server["extra"] == pytest.approx(4 / 20 * (2 + 2 / 2), rel=0.01)
    assert blind["extra"] == pytest.approx(3 / 19 * blindly["extra"], rel=0.01)
    assert (blind["bound"], blindly["bound"]) == (True, False)


def test_a_setting_that_would_do_nothing_is_refused(tmp_path, say):
    path = study(tmp_path, back="when_idle = 'sizes', t0 = 2")
    code, _, err = say("check", path)
    assert code != 0
    assert "when_idle = 'sizes' needs t0 = 'auto'" in " ".join(err.split())


def test_the_command_line_takes_auto(tmp_path, say):
    path = study(tmp_path, row="S = 2")
    seen = json.loads(say("check", path, "--set", "method.t0=auto", "--json")[1])
    settings = {item["setting"]: item["value"] for item in seen["rows"][0]["settings"]}
    assert settings["method.t0"] == "auto"


def test_trackers_get_the_gain_and_whether_it_paid(home):
    names = {site: site for site in ("I", "II", "III")}
    first = lines(home / "auto" / "seed-0")[0]
    points = round_points(first, names)
    assert points["verdict/gain"] == first["verdict"]["gain"]
    assert points["verdict/paid"] == float(first["verdict"]["paid"])
    assert not any("verdict" in name for name in round_points(first | {"verdict": None}, names))


def test_the_written_report_shows_which_calls_paid(home, tmp_path, say):
    code, _, _ = say("report", home, "--no-examples", "--out", tmp_path / "page")
    assert code == 0
    assert "Calls of LearnAggWeight that paid" in (tmp_path / "page" / "index.html").read_text()
    assert (tmp_path / "page" / "tables" / "paying.csv").is_file()
    assert (tmp_path / "page" / "figures" / "paying.svg").is_file()
