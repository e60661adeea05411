"""Which row and which cases a report shows: rules, so that nobody looks for pretty ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.report.repeats import Repeat, Results, Row
from autofedavg.report.tables import mean_known

MEDIAN, GAIN, LOSS, ONLY = "median difference", "largest gain", "largest loss", "only case"


TRIALS = "trials are not tested, so there is no case to choose"
MEANS_ALONE = "sites disclosed means alone (exchange.disclose), so there is no case to choose"


class Tested(NamedTuple):
    """A case's score, and the run that tested it."""

    repeat: Repeat
    score: float


class Pick(NamedTuple):
    """A case to show."""

    site: str
    case: str
    why: str
    difference: float


def scored_cases(row: Row, seed: int) -> dict[tuple[str, str], Tested]:
    """(site, case) -> the global model's test score with this seed, whichever fold it is of."""
    return {
        (tested.site, case): Tested(repeat, value)
        for repeat in row.finished
        if repeat.seed == seed
        for tested, column in repeat.scores.columns("global", row.metric, "test")
        for case, value in zip(*column, strict=True)
    }


def shared_seed(one: Row, other: Row) -> int | None:
    """The lowest seed that both rows have finished, in all folds, with a global model."""
    seeds = sorted(one.whole.keys() & other.whole.keys())
    return next((s for s in seeds if scored_cases(one, s) and scored_cases(other, s)), None)


def pick_row(results: Results, baseline: Row) -> tuple[Row, str]:
    """The row to show beside the baseline, and the rule by which it is chosen.

    Of the rows of Auto-FedAvg (without any: of all others) the one whose selected models have the
    best mean validation score. Test scores have no say: they are what the pictures illustrate.

    Raises:
        RunError: there is no other row, or none that is finished.
    """
    rest = [row for row in results.rows if row.name != baseline.name]
    if not rest:
        raise RunError(f"there is no second row beside {baseline.label}")
    others = [row for row in rest if shared_seed(baseline, row) is not None]
    if not others and any(row.by_means for row in rest):
        raise RunError(MEANS_ALONE)
    if not others:
        raise RunError(
            "no row beside the baseline is finished and has a global model",
            remedy="finish one with `autofedavg resume`",
        )
    ours = [row for row in others if row.learns]
    pool = ours or others
    kind = "of Auto-FedAvg" if ours else "beside the baseline"
    # Of the models that a row selected, over its seeds and folds.
    validated = {row.name: mean_known(map(selected, row.counted)) for row in pool}
    known = {name: score for name, score in validated.items() if score is not None}
    best = max(pool, key=lambda row: known.get(row.name, -1.0))
    if len(pool) == 1:
        return best, f"{best.label} is the only row {kind}."
    if not known:
        return best, f"Of {len(pool)} rows {kind}, the first is shown: none was validated."
    return best, (
        f"Of {len(pool)} rows {kind}, {best.label} is shown: the models it selected have the best "
        f"mean validation score ({100 * known[best.name]:.2f}). Test scores do not choose the row."
    )


def selected(repeat: Repeat) -> float | None:
    """The validation score by which a run's global model was selected."""
    means = [line["validation"]["mean"] for line in repeat.rounds]
    if repeat.config.get("select") == "last":
        means = means[-1:]
    return max((mean for mean in means if mean is not None), default=None)


def pick_cases(site: str, differences: Mapping[str, float]) -> list[Pick]:
    """The cases of a site to show: the median difference, the largest gain, the largest loss.

    Args:
        site: its name.
        differences: case -> score of the method minus that of the baseline.

    Returns:
        Up to three different cases. A gain is shown only where there is one, and so is a loss; of
        equal differences the first name counts. Of one or two cases all are shown.
    """
    order = sorted(differences, key=lambda case: (differences[case], case))
    best = min(order, key=lambda case: (-differences[case], case))
    ends: dict[str, str] = {}
    if len(order) == 1:
        ends[best] = ONLY
    elif differences[best] > 0:
        ends[best] = GAIN
    if differences[order[0]] < 0:
        ends.setdefault(order[0], LOSS)
    middle = [case for case in _middle(order, differences) if case not in ends]
    shown = dict.fromkeys(middle if len(order) < 3 else middle[:1], MEDIAN)
    return [Pick(site, case, why, differences[case]) for case, why in (shown | ends).items()]


def _middle(order: list[str], differences: Mapping[str, float]) -> list[str]:
    """The cases with a median difference: the lower median first, if the number is even."""
    medians = [differences[order[place]] for place in ((len(order) - 1) // 2, len(order) // 2)]
    found = [case for median in medians for case in order if differences[case] == median]
    return list(dict.fromkeys(found))
