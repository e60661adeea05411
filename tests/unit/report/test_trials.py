"""Which trial is chosen: by finished validation scores of all its repeats, the first of equals."""

from pathlib import Path

import pytest

from autofedavg.core.scores import Scores
from autofedavg.report.repeats import Repeat, Results, Row
from autofedavg.report.trials import Trial, best_of, trials_in, trials_table


def repeat(seed: int, *means: float, state: str = "finished", **config) -> Repeat:
    rounds = [
        {"t": t, "validation": {"mean": mean, "sites": {}}} for t, mean in enumerate(means, 1)
    ]
    settings = {"test": False, "method": {"name": "fedavg"}, **config}
    return Repeat(Path("run"), seed, None, state, settings, {}, rounds, Scores())


def results(*trials: tuple[Repeat, ...]) -> Results:
    rows = [
        Row(f"fedavg.trial-{n}", f"FedAvg, trial {n}: mu = {n}", repeats, "dice")
        for n, repeats in enumerate(trials, 1)
    ]
    return Results("trials", tuple(rows), "", {})


def test_of_equal_trials_the_first_is_chosen_and_one_without_a_score_never() -> None:
    trials = [Trial("row", 1, "", None), Trial("row", 2, "", 0.5), Trial("row", 3, "", 0.5)]
    assert best_of(trials).number == 2
    assert best_of([*trials, Trial("row", 4, "", 0.51)]).number == 4
    assert best_of([Trial("row", 1, "", None), Trial("row", 2, "", 0.0)]).number == 2
    assert best_of(trials[:1]) is None


@pytest.mark.parametrize("state", ["failed", "interrupted", "running"])
def test_a_trial_with_an_unfinished_repeat_has_no_score(state) -> None:
    """A mean of those that ended well would choose settings that diverge now and then."""
    whole = (repeat(100, 0.4, 0.2), repeat(101, 0.5, 0.8))
    partly = (repeat(100, 0.9), repeat(101, 0.9, state=state))
    (found,) = trials_in(results(whole, partly)).values()
    assert [trial.score for trial in found] == [pytest.approx(0.6), None]
    table = trials_table(results(whole, partly))
    ((label, cells),) = table.rows
    assert (label, cells[0].value, cells[-1].text) == ("FedAvg", 2.0, "1: mu = 1")
    assert "FedAvg, trial 2: no score: not finished, or training failed." in table.notes


def test_the_score_is_that_of_the_round_that_the_run_would_select() -> None:
    last = (repeat(100, 0.9, 0.1, select="last"),)
    (found,) = trials_in(results((repeat(100, 0.2, 0.3, 0.1),), last)).values()
    assert [trial.score for trial in found] == pytest.approx([0.3, 0.1])


def test_a_run_that_was_tested_is_no_trial_whatever_its_name() -> None:
    assert trials_in(results((repeat(0, 0.5, test=True),))) == {}
    assert trials_table(results((repeat(0, 0.5, test=True),))) is None


def tried(*scored: tuple[dict, float], rate: float = 0.01) -> list[str]:
    """The notes on what lies at an end, of trials with other settings of the method."""
    trials = [
        (repeat(100, score, method={"name": "x", **method}, training={"learning_rate": rate}),)
        for method, score in scored
    ]
    return [note for note in trials_table(results(*trials)).notes if "end" in note]


def test_a_chosen_value_at_the_end_of_those_tried_is_named() -> None:
    middle = [({"mu": 0.1}, 0.3), ({"mu": 0.01}, 0.2), ({"mu": 1.0}, 0.2)]
    assert tried(*middle) == []
    low = [({"mu": 0.1}, 0.3), ({"mu": 0.01}, 0.4), ({"mu": 1.0}, 0.2)]
    (note,) = tried(*low)
    said = "At an end of what was tried; values beyond may be better. mu = 0.01: FedAvg."
    assert note == said
    high = [({"mu": 0.1}, 0.3), ({"mu": 0.01}, 0.2), ({"mu": 1.0}, 0.5)]
    assert "mu = 1.0: FedAvg." in tried(*high)[0]


def test_a_setting_as_written_is_at_an_end_of_three_values_alone() -> None:
    """Of two values each is at an end: that says nothing of the one that was there before."""
    assert tried(({"mu": 0.1}, 0.3), ({"mu": 1.0}, 0.2)) == []
    assert len(tried(({"mu": 0.1}, 0.2), ({"mu": 1.0}, 0.3))) == 1
    assert len(tried(({"mu": 0.1}, 0.3), ({"mu": 1.0}, 0.2), ({"mu": 2.0}, 0.1))) == 1


def test_words_and_switches_have_no_end() -> None:
    assert tried(({"weights": "size"}, 0.2), ({"weights": "even"}, 0.3)) == []
    assert tried(({"average": True}, 0.2), ({"average": False}, 0.3)) == []
    assert tried(({"f": "auto"}, 0.2), ({"f": 1}, 0.3)) == []


def test_a_rate_of_training_is_named_with_all_rows_that_chose_it() -> None:
    rows = [
        Row(f"{name}.trial-{n}", f"{name}, trial {n}: x",
            (repeat(100, score, training={"learning_rate": rate}),), "dice")
        for name in ("a", "b")
        for n, (rate, score) in enumerate(((0.01, 0.1), (0.02, 0.3)), 1)
    ]  # fmt: skip
    found = trials_table(Results("trials", tuple(rows), "", {}))
    assert any(note.endswith("training.learning_rate = 0.02: a; b.") for note in found.notes)


@pytest.mark.parametrize(("n", "said"), [(1, "1 trial."), (2, "2 trials.")])
def test_a_single_trial_is_counted_in_the_singular(n, said) -> None:
    assert f"Every row has {said}" in trials_table(results(*[(repeat(0, 0.5),)] * n)).notes
