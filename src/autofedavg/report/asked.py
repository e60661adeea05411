"""What a study asks for and still lacks, and whether a run folder holds what a run writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.scores import Scores
from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.folder import STUDY, read_json, run_path, study_home
from autofedavg.experiment.folder_schema import HUGE


class Missing(NamedTuple):
    """A run that a study asks for and that has no folder."""

    label: str
    seed: int
    fold: int | None


def missing_runs(paths: Sequence[Path]) -> Iterator[Missing]:
    """Runs that the studies at or below the paths ask for and that were not begun."""
    folders = map(as_folder, paths)
    for listed in sorted({found for folder in folders for found in folder.rglob(STUDY)}):
        for row in read_json(listed).get("runs", []):
            name = str(row["config"]["name"])
            for fold, seed in row["jobs"]:
                if not (run_path(listed.parent, name, seed, fold) / "config.toml").exists():
                    yield Missing(str(row["config"].get("label", name)), seed, fold)


def study_of(folder: Path) -> dict[str, Any]:
    """The study.json of the study that a run lies in; empty where it lies in none."""
    home = study_home(folder)
    return read_json(home / STUDY) if home else {}


def refuse_unfit(
    cases: Mapping[str, Any],
    config: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    scores: Scores,
) -> None:
    """What no run writes, and what tables and figures could not be made from.

    Raises:
        ValueError, LookupError: with what is wrong.
    """
    _ = config["method"]["name"], config["task"]["name"]
    for line in rounds:
        alpha = line["alpha"]
        if alpha is not None and len(alpha) != len(cases):
            raise ValueError(f"round {line['t']} has {len(alpha)} weights, not {len(cases)}")
        numbers = [line.get(of, {}).get("mean") for of in ("validation", "test")]
        numbers += line.get("loss", {}).values()
        numbers += [x for losses in line.get("learning_loss", {}).values() for x in losses]
        numbers += [a for per_site in alpha or [] for a in _listed(per_site)]
        for event in line.get("events") or []:
            _ = event["site"], event["what"]
        if not all(number is None or -HUGE <= number <= HUGE for number in numbers):
            raise ValueError(f"round {line['t']} has a number that is not finite, or too large")
    for tested, _ in scores.columns():
        if tested.site not in cases:
            raise ValueError(f"scores.csv names {tested.site}, which is no site of this run")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
