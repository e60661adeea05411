"""Whole runs whose sites are lost, late, wrong or forgetful: how they end and what they say."""

import contextlib
import json

import pytest

from autofedavg.core.errors import FederationError
from autofedavg.core.seeds import Seeds
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.run import RunLoop
from autofedavg.experiment.selection import Best
from autofedavg.experiment.toml_text import to_toml
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.report.build import report_tables
from autofedavg.report.read import read_results
from flaky import Fault, FlakyFleet
from toy import METRIC, norm_net, toy_problem

T = 4
METHOD = AutoFedAvg(S=3, t0=2)
ALWAYS = ("local_train", "share_models", "update_beta", "validate_local", "evaluate")


class Stopped(Exception):
    """The server is gone."""


def begun(path, exchange):
    """A run folder as a study makes it, for the toy problem."""
    if (path / "config.toml").exists():
        return RunFolder(path)
    config = {
        "name": path.name,
        "label": path.name,
        "rounds": T,
        "task": {"name": "toy"},
        "training": {"batch_size": 4},
        "method": METHOD.model_dump(),
        "exchange": exchange.model_dump(),
    }
    cases = {"train": 8, "validation": 6, "test": 5}
    data = {"data": "toys", "split_sha256": "0", "cases": dict.fromkeys("ABC", cases)}
    about = {"seed": 0, "metric": METRIC, "data": data}
    return RunFolder.create(path, to_toml(config), about)


def train(path, faults=(), *, quorum=2, stop=None, test_every=0, **exchange):
    """Runs, or goes on; every call has clients that know nothing yet."""
    problem = toy_problem(3, norm_net)
    settings = Exchange(**exchange)
    transport = FlakyFleet(problem, faults)
    federation = Federation(transport, quorum=quorum, exchange=settings, seeds=Seeds(7))
    w0, layout = problem.initial(Seeds(7))

    def watch(seen):
        if seen.t == stop and seen.tested is None:
            raise Stopped

    folder = begun(path, settings)
    with contextlib.suppress(Stopped):
        general = Rounds(rounds=T, test_every=test_every)
        RunLoop(METHOD, general, federation, layout, METRIC, folder).run(w0, watch)
    return folder


def lines(folder):
    return folder.rounds()


def outcome(folder):
    """All that must not depend on how a run went: models, and what each round says of itself."""
    kept = {
        path.name: json.loads(path.read_text())["sha256"]
        for path in (folder.path / "checkpoints").glob("*.json")
    }
    told = [
        {key: line[key] for key in ("t", "alpha", "beta", "loss", "validation", "answered")}
        | {"learning_loss": line.get("learning_loss"), "test": line.get("test")}
        for line in lines(folder)
    ]
    return kept, told, [tuple(row) for row in folder.scores()]


def happened(folder):
    return [
        (line["t"], event["call"], event["site"], event["what"])
        for line in lines(folder)
        for event in line["events"]
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", quorum=0)


def test_an_undisturbed_run_has_no_events(undisturbed):
    assert undisturbed.status() == "finished"
    assert all(line["events"] == [] for line in lines(undisturbed))


HARMLESS = [
    Fault("A", "local_train", "lost", t=1, times=1),
    Fault("B", "local_train", "forgets", t=2, times=1),
    Fault("C", "share_models", "lost", t=2, times=1),
    Fault("B", "share_models", "forgets", t=4, times=1),
    Fault("A", "update_beta", "forgets", t=2, s=2, times=1),
    Fault("C", "update_beta", "lost", t=4, s=1, times=1),
    Fault("B", "validate_local", "forgets", t=3, times=1),
    Fault("C", "evaluate", "lost", times=1),
]


def test_faults_that_a_second_request_mends_change_no_bit(tmp_path, undisturbed):
    faults = [Fault(f.site, f.verb, f.what, f.t, f.s, f.times) for f in HARMLESS]
    folder = train(tmp_path / "run", faults, quorum=0)
    assert outcome(folder) == outcome(undisturbed)
    assert all(fault.met == 1 for fault in faults)
    assert happened(folder) == [
        (1, "local_train", "A", "retried"),
        (1, "evaluate", "C", "retried"),
        (2, "share_models", "C", "retried"),
        (2, "share_models", "C", "resent"),
        (2, "share_models", "A", "resent"),
        (2, "validate_local", "A", "resent"),
        (3, "validate_local", "B", "resent"),
        (4, "share_models", "B", "resent"),
        (4, "update_beta", "C", "retried"),
        (4, "validate_local", "B", "resent"),
    ]


def test_a_site_that_misses_training_sits_out_the_round_and_continues(tmp_path, undisturbed):
    folder = train(tmp_path / "run", [Fault("B", "local_train", "lost", t=2)])
    assert folder.status() == "finished"
    assert [line["answered"] for line in lines(folder)] == [
        ["A", "B", "C"],
        ["A", "C"],
        ["A", "B", "C"],
        ["A", "B", "C"],
    ]
    second = lines(folder)[1]
    assert sorted(second["validation_local"]) == ["A", "C"]
    assert sorted(second["validation"]["sites"]) == ["A", "B", "C"]
    assert second["beta"][1] == lines(folder)[0]["beta"][1]
    assert happened(folder) == [
        (2, "local_train", "B", "retried"),
        (2, "local_train", "B", "lost"),
        (2, "evaluate", "B", "returned"),
    ]

    def average(of):
        return sum(row.value for row in of.scores() if row.model == "global") / 15

    assert average(folder) == pytest.approx(average(undisturbed), abs=0.1)


def test_a_site_that_misses_beta_steps_leaves_its_entry_alone(tmp_path):
    folder = train(tmp_path / "run", [Fault("B", "update_beta", "late", t=2)], deadline=0.02)
    second = lines(folder)[1]
    assert second["answered"] == ["A", "B", "C"]
    assert second["beta"][1] == lines(folder)[0]["beta"][1]
    assert second["beta"][0] != lines(folder)[0]["beta"][0]
    late = [event for event in second["events"] if event["what"] == "lost"]
    assert [event["s"] for event in late] == [1, 2, 3]
    assert all(event["seconds"] >= 0.02 for event in late)


@pytest.mark.parametrize("what", ["nan", "shape", "names", "error", "loss"])
def test_a_wrong_site_is_left_out_of_the_round_or_ends_the_run(tmp_path, what):
    fault = Fault("B", "local_train", what, t=3)
    folder = train(tmp_path / "drop", [fault], bad_answers="drop")
    assert folder.status() == "finished"
    assert lines(folder)[2]["answered"] == ["A", "C"]
    assert (3, "local_train", "B", "dropped") in happened(folder)
    with pytest.raises(FederationError, match=r"^client B, local_train, round 3: "):
        train(tmp_path / "fail", [fault])
    failed = RunFolder(tmp_path / "fail")
    assert failed.status() == "failed"
    assert "client B, local_train, round 3" in failed.outcome()["error"]
    assert len(lines(failed)) == 2


# --- validation with a site missing ---------------------------------------------------------------


def evaluations_lost(site, *numbers):
    """Loses a site's answers to these validations of a run, counted from 1."""

    class Counted(Fault):
        asked = 0

        def strikes(self, name, verb, message):
            if (name, verb) != (site, "evaluate"):
                return False
            self.asked += 1
            return self.asked in numbers

    return Counted(site, "evaluate", "lost")


def test_where_a_site_misses_a_test_its_latest_score_stands_in(tmp_path):
    """Every round asks twice, for validation and for the test: the sixth time is round 3's test."""
    how = {"test_every": 1, "retries": 0}
    whole = train(tmp_path / "whole", **how)
    folder = train(tmp_path / "run", [evaluations_lost("B", 6)], **how)
    tested = [line["test"] for line in lines(folder)]
    assert [sorted(test["sites"]) for test in tested] == [[*"ABC"], [*"ABC"], [*"AC"], [*"ABC"]]
    before, then = (lines(whole)[at]["test"]["sites"] for at in (1, 2))
    expected = (then["A"] + before["B"] + then["C"]) / 3
    assert tested[2]["mean"] == pytest.approx(expected, abs=1e-15)
    train(tmp_path / "cut", stop=2, **how)
    resumed = train(tmp_path / "cut", [evaluations_lost("B", 2)], **how)
    assert [line["test"] for line in lines(resumed)] == tested


def test_a_missing_site_s_latest_score_stands_in(tmp_path, undisturbed):
    folder = train(tmp_path / "run", [evaluations_lost("C", 2, 3)], retries=0)
    latest: dict[str, float] = {}
    for line, whole in zip(lines(folder), lines(undisturbed), strict=True):
        assert line["alpha"] == whole["alpha"]
        sites = line["validation"]["sites"]
        latest |= sites
        assert sorted(sites) == (["A", "B"] if line["t"] in (2, 3) else ["A", "B", "C"])
        expected = sum(latest[name] for name in "ABC") / 3
        assert line["validation"]["mean"] == pytest.approx(expected, abs=1e-15)


def test_no_round_wins_because_a_bad_site_was_away():
    best = Best()
    assert best.beaten_by(0.5, 3)
    best.score, best.sites = 0.5, 3
    assert not best.beaten_by(0.9, 2)
    assert not best.beaten_by(0.5, 3)
    assert best.beaten_by(0.51, 3)


def test_a_site_that_is_heard_for_the_first_time_begins_the_choice_anew(tmp_path):
    """Means over two sites and over three are not compared."""
    folder = train(tmp_path / "run", [evaluations_lost("C", 1)], retries=0)
    saved = json.loads((folder.path / "checkpoints" / f"last-{T}.json").read_text())["best"]
    means = {line["t"]: line["validation"]["mean"] for line in lines(folder) if line["t"] > 1}
    assert saved["t"] == max(means, key=lambda t: (means[t], -t))
    assert saved["sites"] == 3


def test_a_resumed_run_chooses_as_one_that_was_never_stopped(tmp_path):
    whole = train(tmp_path / "whole", [evaluations_lost("C", 2, 3)], retries=0)
    cut = train(tmp_path / "cut", [evaluations_lost("C", 2, 3)], retries=0, stop=2)
    assert cut.status() != "finished"
    train(tmp_path / "cut", [evaluations_lost("C", 1)], retries=0)
    assert outcome(cut) == outcome(whole)


def test_a_checkpoint_of_an_earlier_version_is_gone_on_with(tmp_path, undisturbed):
    cut = train(tmp_path / "cut", quorum=0, stop=2)
    for path in (cut.path / "checkpoints").glob("last-*.json"):
        facts = json.loads(path.read_text())
        del facts["best"]["seen"], facts["best"]["sites"]
        path.write_text(json.dumps(facts))
    train(tmp_path / "cut", quorum=0)
    assert outcome(cut) == outcome(undisturbed)


# --- the test at the end --------------------------------------------------------------------------


def test_a_site_that_is_gone_for_good_fails_the_test_and_resuming_tests_again(tmp_path):
    gone = [Fault("C", verb, "lost", t=t) for verb in ALWAYS for t in (2, 3, 4)]
    gone.append(Fault("C", "evaluate", "lost"))
    with pytest.raises(FederationError, match=r"client C, evaluate: did not answer .*3 needed"):
        train(tmp_path / "run", gone, bad_answers="drop")
    folder = RunFolder(tmp_path / "run")
    assert folder.status() == "failed"
    assert "client C, evaluate" in folder.outcome()["error"]
    assert len(lines(folder)) == T
    assert not folder.scores()
    before = lines(folder)
    train(tmp_path / "run")
    assert folder.status() == "finished"
    assert lines(folder) == before
    assert {row.site for row in folder.scores()} == {"A", "B", "C"}


# --- encodings and stops --------------------------------------------------------------------------


@pytest.mark.parametrize("down", ["float32", "bfloat16", "difference"])
@pytest.mark.parametrize("up", ["float32", "bfloat16", "difference"])
def test_a_stopped_run_gives_the_same_bits_in_every_encoding(tmp_path, down, up):
    whole = train(tmp_path / "whole", down=down, up=up)
    for stop in (1, 3):
        cut = train(tmp_path / f"cut-{stop}", down=down, up=up, stop=stop)
        train(tmp_path / f"cut-{stop}", down=down, up=up)
        assert outcome(cut) == outcome(whole)
    lossy = (down, up) != ("float32", "float32")
    forgetful = [Fault("B", "local_train", "forgets", t=t, times=1) for t in (2, 3, 4)]
    flaky = train(tmp_path / "flaky", forgetful, down=down, up=up)
    assert outcome(flaky) == outcome(whole)
    assert bool(happened(flaky)) == (lossy and down == "difference")


# --- the report -----------------------------------------------------------------------------------


def test_the_report_counts_events_by_site(tmp_path):
    faults = [Fault("B", "local_train", "lost", t=2), Fault("A", "local_train", "nan", t=3)]
    faults.append(evaluations_lost("C", 4))
    train(tmp_path / "run", faults, bad_answers="drop", retries=0, down="bfloat16")
    results = read_results([tmp_path / "run"])
    (table,) = report_tables(results)["training"]
    assert table.heads == ("lost", "dropped", "asked again", "sent again", "returned", "rounds")
    found = {label: [cell.value for cell in cells] for label, cells in table.rows}
    assert found == {
        "run - A": [0, 1, 0, 0, 1, 1],
        "run - B": [1, 0, 0, 0, 1, 1],
        "run - C": [1, 0, 0, 0, 0, 1],
    }
    (scores, *_), costs = report_tables(results)["scores"], report_tables(results)["costs"]
    messages = " ".join(scores.notes)
    assert "run: in 2 of 4 rounds not every site answered" in messages
    assert (
        "run: in 1 rounds a site did not validate; its score of the last round in which" in messages
    )
    assert "run: answers of A could not be used and were left out." in messages
    assert "run: models travelled as bfloat16 down and as float32 up." in costs[0].notes
    cells = dict(zip(costs[0].heads, costs[0].rows[0][1], strict=True))
    both = cells["down, MB"].value + cells["up, MB"].value
    assert both == pytest.approx(cells["total, MB"].value)


def test_a_run_without_events_has_no_table_of_them(undisturbed):
    tables = report_tables(read_results([undisturbed.path]))
    assert tables["training"] == []
    assert not any("travelled" in message for table in tables["costs"] for message in table.notes)
