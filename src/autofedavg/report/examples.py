"""Makes the example cases (the paper's Figure 2): image, label, and what two models found.

Nothing here is chosen by eye: rows and cases by rule (`picks`), the slice by the label. What the
models find is computed again from their checkpoints and checked against scores.csv (`redone`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autofedavg.core.errors import AutoFedAvgError, DataError, RunError, did_you_mean
from autofedavg.experiment.machine_paths import without_paths
from autofedavg.report.gallery import IMAGE, LABEL, ExampleCase, Examples, Key, Panel
from autofedavg.report.picks import (
    GAIN,
    LOSS,
    MEANS_ALONE,
    ONLY,
    TRIALS,
    Pick,
    Tested,
    pick_cases,
    pick_row,
    scored_cases,
    shared_seed,
)
from autofedavg.report.redone import Check, Opened, check_notes, open_run
from autofedavg.report.repeats import Results, Row

if TYPE_CHECKING:
    from autofedavg.tasks.base import Progress

Rows = tuple[Row, Row]  # the baseline's, the method's
Scored = tuple[Mapping[tuple[str, str], Tested], ...]  # of the same two, by site and case


def example_cases(results: Results, method: str = "", progress: Progress | None = None) -> Examples:
    """Draws the example cases of a study.

    Args:
        results: the runs, from `read_results`.
        method: the name of the row to compare with the baseline; chosen by rule when empty.
        progress: told of every case.

    Returns:
        The cases; without any, a note says why.

    Raises:
        RunError: there is no row called `method`.
    """
    names = [row.name for row in results.rows]
    if method and method not in names:
        raise RunError(
            f"row {method!r} is not among the runs",
            where="example cases",
            remedy=did_you_mean(method, names),
        )
    baseline, chosen, rule = results.baseline_row, results.row(method), ""
    try:
        if not any(repeat.tested for _, repeat in results.runs):
            raise RunError(TRIALS)
        if baseline is None:
            raise RunError("there is no baseline to compare with", remedy="name one")
        if chosen is baseline:
            raise RunError(f"{baseline.label} is the baseline itself", remedy="name another row")
        if baseline.by_means or (chosen and chosen.by_means):
            raise RunError(MEANS_ALONE)
        if chosen is None:
            chosen, rule = pick_row(results, baseline)
        return _examples((baseline, chosen), rule, progress)
    except AutoFedAvgError as error:
        told = [row.label if row else "" for row in (baseline, chosen)]
        return Examples(told[0], told[1], notes=(f"no pictures: {_line(error)}",))


def _examples(rows: Rows, rule: str, progress: Progress | None) -> Examples:
    labels = [row.label for row in rows]
    seed = shared_seed(*rows)
    if seed is None:
        raise RunError(
            f"{' and '.join(labels)} have no finished seed in common with a global model",
            remedy="finish one with `autofedavg resume`",
        )
    tested = tuple(scored_cases(row, seed) for row in rows)
    differences: dict[str, dict[str, float]] = {}
    for site, case in sorted(tested[0].keys() & tested[1].keys()):
        before, after = (known[site, case].score for known in tested)
        differences.setdefault(site, {})[case] = after - before
    if not differences:
        raise RunError(f"{' and '.join(labels)} have tested no case in common")
    picks = [pick for site, known in differences.items() for pick in pick_cases(site, known)]
    cases, key, told = _draw(picks, labels, tested, progress)
    notes = [
        rule,
        f"At every site: the test case with the median difference between {labels[1]} and "
        f"{labels[0]}, the one with the largest gain and the one with the largest loss (seed "
        f"{seed}; equal ones by name).",
        *_without(differences, picks),
        *_views(cases),
        *told,
    ]
    return Examples(labels[0], labels[1], cases, tuple(filter(None, notes)), key)


def _draw(
    picks: Sequence[Pick], labels: Sequence[str], tested: Scored, progress: Progress | None
) -> tuple[tuple[ExampleCase, ...], tuple[Key, ...], list[str]]:
    """All cases, one at a time, with the models of one fold at a time; their key, and notes."""
    opened: dict[Path, Opened] = {}
    shown: dict[Pick, ExampleCase] = {}
    checks: list[Check] = []
    failed: list[str] = []
    compared = True
    key: tuple[Key, ...] = ()
    pairs = {pick: [known[pick.site, pick.case] for known in tested] for pick in picks}
    for done, pick in enumerate(sorted(picks, key=lambda p: pairs[p][0].repeat.fold or 0), 1):
        pair = pairs[pick]
        if any(known.repeat.folder not in opened for known in pair):
            opened = {known.repeat.folder: open_run(known.repeat, progress) for known in pair}
        runs = [opened[known.repeat.folder] for known in pair]
        compared = compared and all(run.compared for run in runs)
        key = _key([*runs[1].collection.classes])
        try:
            shown[pick], found = _draw_case(pick, labels, pair, runs)
            checks += found
        except AutoFedAvgError as error:
            failed.append(f"{pick.site}, {pick.case}: {_line(error)}")
        if progress:
            progress("drawing example cases", done, len(picks))
    if not shown:
        raise DataError(failed[0])
    notes = check_notes(checks) + [f"no picture of {reason}" for reason in failed]
    if not compared:
        notes.append(
            "The data was not compared as a whole with that of the runs, for too little of it is "
            "prepared on this machine; what is shown was checked by its scores."
        )
    return tuple(shown[pick] for pick in picks if pick in shown), key, notes


def _draw_case(
    pick: Pick, labels: Sequence[str], pair: Sequence[Tested], runs: Sequence[Opened]
) -> tuple[ExampleCase, list[Check]]:
    from autofedavg.tasks.imaging.panels import panels, shades, view

    collection = runs[1].collection
    scan, label = collection.load(collection.case(pick.site, pick.case))
    found = [
        run.collection.segment(run.collection.case(pick.site, pick.case), run.network)
        for run in runs
    ]
    checks = [
        Check(f"{pick.site}, {pick.case}, {row}", anew.dice, known.score, run.elsewhere)
        for row, anew, known, run in zip(labels, found, pair, runs, strict=True)
    ]
    seen = view(scan, label, *(one.classes for one in found))
    pictures = panels(seen, *shades(scan, collection.how), len(collection.classes))
    scores = (None, None, *(known.score for known in pair))
    shown = tuple(
        Panel(what, made.png, made.size, score)
        for what, made, score in zip((IMAGE, LABEL, *labels), pictures, scores, strict=True)
    )
    return ExampleCase(*pick, seen.slice, seen.slices, shown, seen.upright), checks


def _key(classes: Sequence[str]) -> tuple[Key, ...]:
    from autofedavg.tasks.imaging.panels import colours_of

    own, others = colours_of(len(classes))
    if len(classes) == 1:
        return Key(LABEL, f"rgb{own[0]}"), Key("segmentation", f"rgb{others[0]}")
    return tuple(Key(name, f"rgb{colour}") for name, colour in zip(classes, own, strict=True))


def _without(differences: Mapping[str, Mapping[str, float]], picks: Sequence[Pick]) -> list[str]:
    """Which sites have no gain or no loss to show."""
    notes = []
    for why, what in ((GAIN, "gains"), (LOSS, "loses")):
        having = {pick.site for pick in picks if pick.why in (why, ONLY)}
        lacking = [site for site in differences if site not in having]
        if lacking:
            notes.append(f"No case {what} at {', '.join(lacking)}.")
    return notes


def _views(cases: Sequence[ExampleCase]) -> list[str]:
    """What the pictures show of the cases."""
    lines = "Lines are borders. Beside segmentations, the label is dashed."
    if all(case.slice is None for case in cases):
        return [lines]
    place = "Shown is the slice where the label is largest; scores are of whole cases."
    notes = [f"{place} {lines}"]
    as_stored = [f"{case.site}, {case.case}" for case in cases if not case.upright]
    turned = len(as_stored) < len(cases)
    if turned:
        notes.append("The patient's right is on the left, the front up.")
    if as_stored:
        where = f" of {'; '.join(as_stored)}" if turned else ""
        notes.append(f"The files{where} do not say how the patient lies: shown as stored.")
    return notes


def _line(error: AutoFedAvgError) -> str:
    return without_paths(" ".join(str(error).split()))
