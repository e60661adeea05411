"""How trials are named, what a trial is chosen by, and when it has failed for good."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from autofedavg.core.errors import Diverged, DivergedReply
from autofedavg.experiment.folder import Ledger, read_toml

_TRIAL = re.compile(r"(?P<row>.+)\.trial-(?P<number>[1-9]\d*)")
AS_WRITTEN = "as written"
DIVERGED = (Diverged.__name__, DivergedReply.__name__)  # kinds of error, as status.json has them


def trial_name(row: str, number: int) -> str:
    """The name of a row's trial, which is a row of the study of trials."""
    return f"{row}.trial-{number}"


def trial_in(name: str) -> tuple[str, int] | None:
    """The row and the number in a trial's name; None if it is not one.

    Example:
        >>> trial_in("fedavgm.trial-2"), trial_in("fedavgm")
        (('fedavgm', 2), None)
    """
    found = _TRIAL.fullmatch(name)
    return (found["row"], int(found["number"])) if found else None


def trial_label(label: str, number: int, changes: Mapping[str, Any]) -> str:
    """The label of a row's trial."""
    return f"{label}{_mark(number)}{told(changes)}"


def label_parts(label: str, number: int) -> tuple[str, str]:
    """The row's label and what the trial changes, from the trial's label."""
    row, _, changes = label.rpartition(_mark(number))
    return row, changes


def told(changes: Mapping[str, Any]) -> str:
    """What a trial changes, in words."""
    said = (f"{path.removeprefix('method.')} = {value}" for path, value in changes.items())
    return ", ".join(said) or AS_WRITTEN


def _mark(number: int) -> str:
    return f", trial {number}: "


def diverged(run: Path) -> bool:
    """Whether this is a trial in which training diverged: a result, which has no score.

    Other failures are not one: a client that was killed can be resumed, wrong data mended.
    """
    outcome = Ledger(run).outcome() if (run / "status.json").exists() else {}
    failed = outcome.get("state") == "failed" and outcome.get("kind") in DIVERGED
    return failed and read_toml(run / "config.toml").get("test") is False


def validation_score(rounds: Sequence[Mapping[str, Any]], select: str) -> float | None:
    """The validation score of the models that a run would have tested, mean over sites.

    Of personal models, where the method trains some; else of the global model; else of the sites'
    own models. With `select` "best" it is that of the best round, for a site's model of its own
    best round; with "last" that of the last round. Test scores are not read.
    """
    shown = rounds if select == "best" else rounds[-1:]
    for kind in ("validation_personal", "validation", "validation_local"):
        lines = [line.get(kind) or {} for line in shown]
        if kind == "validation":
            found = [line["mean"] for line in lines if line.get("mean") is not None]
            if found:
                return float(max(found))
            continue
        best: dict[str, float] = {}
        for site, score in (pair for line in lines for pair in line.items()):
            best[site] = max(score, best.get(site, score))
        if best:
            return fmean(best.values())
    return None
