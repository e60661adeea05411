"""What can go wrong, as a tree; every message says what is wrong, where, and what to do.

AutoFedAvgError
├── ConfigError       a study or a setting is wrong
├── DataError         data is missing, damaged or does not fit together
├── FederationError   a client did not answer, or answered something that cannot be used
│   └── DivergedReply a client's training has diverged, as the server sees it
├── RunError          a run folder, a checkpoint or the machine failed
├── TrainingError     training at a client went wrong; says nothing of its data
│   └── Diverged      training has diverged: numbers are not finite, or beyond all reason
└── MissingExtra      an optional package is not installed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class AutoFedAvgError(Exception):
    """Base of all errors raised on purpose by this package.

    Args:
        what: what is wrong, in one sentence without a final full stop.
        where: the file, row, site, round or setting concerned.
        remedy: what the reader can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        text = f"{where}: {what}" if where else what
        apart = "\n" if "\n" in what else "; "
        super().__init__(f"{text}{apart}{remedy}" if remedy else text)


class ConfigError(AutoFedAvgError):
    """A study, a setting or an argument is wrong."""

    exit_code = 2


class DataError(AutoFedAvgError):
    """Data is missing, damaged, or does not fit together."""

    exit_code = 3


class FederationError(AutoFedAvgError):
    """A client did not answer a call, or its answer cannot be used."""

    def __init__(
        self, what: str, *, client: str, call: str, round: int | None = None, remedy: str = ""
    ) -> None:
        self.client, self.call, self.round = client, call, round
        place = f"client {client}, {call}" + ("" if round is None else f", round {round}")
        super().__init__(what, where=place, remedy=remedy)


class DivergedReply(FederationError):
    """A client sent numbers that are not finite, or a loss beyond all reason."""


class RunError(AutoFedAvgError):
    """A run folder, a checkpoint or the machine failed."""


class TrainingError(AutoFedAvgError):
    """Training at a client went wrong; holds no name of a file or a case, so it may be sent on."""


class Diverged(TrainingError):
    """Training has diverged; the same settings would end so again."""


class MissingExtra(AutoFedAvgError):
    """An optional package is not installed."""

    exit_code = 2


LONGEST = 300  # characters of what another machine says, in an error


_CARRIED: dict[str, type[AutoFedAvgError]] = {
    kind.__name__: kind
    for kind in (
        *(AutoFedAvgError, ConfigError, DataError, MissingExtra, RunError),
        *(TrainingError, Diverged),
    )
}


def error_facts(error: AutoFedAvgError) -> dict[str, str]:
    """An error as the plain values of an answer, whole: for engines that stay on one machine."""
    facts = {"error": error.what, "where": error.where, "remedy": error.remedy}
    return {**facts, "kind": type(error).__name__}


def error_in(facts: Mapping[str, Any]) -> AutoFedAvgError | None:
    """The error that `error_facts` wrote, if it did."""
    kind, parts = facts.get("kind"), [facts.get(key) for key in ("error", "where", "remedy")]
    if not isinstance(kind, str) or kind not in _CARRIED:
        return None
    what, where, remedy = (part if isinstance(part, str) else "" for part in parts)
    return _CARRIED[kind](what, where=where, remedy=remedy)


def missing_extra(extra: str, package: str) -> MissingExtra:
    """The error for a package that an extra brings."""
    return MissingExtra(
        f"the package {package} is not installed", remedy=f"pip install 'autofedavg[{extra}]'"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known word, or all of them.

    Example:
        >>> did_you_mean("t_0", ["t0", "S"])
        'did you mean t0?'
    """
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"choose from: {', '.join(sorted(known))}"


def printable(words: str) -> str:
    r"""Text from outside without anything that could steer a terminal.

    Example:
        >>> printable("clinic \x1b[2J")
        'clinic �[2J'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def from_outside(words: object) -> str:
    r"""What another machine says, short and plain enough for an error, a log or a file.

    Example:
        >>> from_outside("no\x1b" + "o" * 1000)[:6], len(from_outside("o" * 1000))
        ('no�ooo', 300)
    """
    return printable(str(words))[:LONGEST]
