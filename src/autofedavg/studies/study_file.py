"""Study files: those that come with the package, by name, and your own, by path."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.experiment.config import Study, parse_study
from autofedavg.experiment.validation import Values

BUILTIN = Path(__file__).with_name("builtin")


def builtin_studies() -> dict[str, str]:
    """Name and title of every study that comes with the package."""
    return {name: study_values(study_path(name))["study"]["title"] for name in _names()}


def study_path(study: Path | str) -> Path:
    """The study's file: a path (with a slash or .toml) is a file, a bare name a built-in study.

    Raises:
        ConfigError: there is no such file, or no built-in study of that name.
    """
    path, known = Path(study), _names()
    if path.suffix == ".toml" or path.name != str(study):
        if path.exists():
            return path
        remedy = "name a TOML file, or one of `autofedavg list studies`"
        if path.stem in known:
            remedy = f"a study of that name comes with the package: {path.stem}"
        raise ConfigError("no such study file", where=str(study), remedy=remedy)
    if path.name in known:
        return BUILTIN / f"{path.name}.toml"
    remedy = f"write ./{path}" if path.exists() else did_you_mean(path.name, known)
    raise ConfigError(f"{str(study)!r} is not a built-in study", remedy=remedy)


def read_study(
    study: Path | str,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    folds: Sequence[int] | None = None,
    sites: Sequence[str] | None = None,
) -> Study:
    """Reads and checks a study.

    Args:
        study: the name of a built-in study, or the path of a TOML file (with a slash or .toml).
        overrides: "key=value" settings for every row that is read, as for `--set`.
        seeds: seeds to use instead of the study's.
        only: names of the rows to read; all when empty.
        folds: folds to use instead of the study's.
        sites: names of the sites, where the data that tells them is on other machines.

    Raises:
        ConfigError: says what is wrong, in which row, and what to do.
    """
    path = study_path(study)
    return parse_study(
        study_values(path), path.name, overrides, seeds, only, path.parent, folds, sites
    )


def study_values(path: Path) -> Values:
    """A study file's content, unchecked.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"not a TOML file: {error}", where=str(path)) from error


def _names() -> list[str]:
    return sorted(path.stem for path in BUILTIN.glob("*.toml"))
