"""What the files of a run folder may hold: kinds of values, not whether they make sense.

Values that are missing pass where earlier versions wrote less. Readers say what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HUGE = 1e100  # no number of a run is larger; sums and squares of these are still numbers


def check(values: Mapping[str, Any], kind: str) -> None:
    """Refuses values of another kind than a run writes.

    Args:
        values: those of a file, or of one line.
        kind: the file's name.

    Raises:
        ValueError: names the value.
    """
    for name, shape in SHAPES.get(kind, {}).items():
        key = name.removesuffix("!")
        if key not in values and key != name:
            raise ValueError(f"{key!r} is missing")
        if key in values and not _fits(values[key], shape):
            raise ValueError(f"{key!r} is not what a run writes")


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape.

    A shape is a type, a function that decides, [shape] for a list, {str: shape} for a table,
    {"key": shape} for a record, in which "key!" must not be missing, or a tuple of alternatives.
    """
    if isinstance(shape, tuple):
        return any(_fits(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(one, shape[0]) for one in value)
    if not isinstance(shape, dict):
        return type(value) is shape if isinstance(shape, type) else bool(shape(value))
    if not isinstance(value, dict):
        return False
    if str in shape:
        return all(_fits(one, shape[str]) for one in value.values())
    keys = {name.removesuffix("!"): (inner, name.endswith("!")) for name, inner in shape.items()}
    return all(_fits(value[k], s) if k in value else not must for k, (s, must) in keys.items())


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 2**63


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -HUGE <= value <= HUGE


def _none(value: Any) -> bool:
    return value is None


def _job(value: Any) -> bool:
    """[fold, seed]."""
    return _fits(value, [(_none, _count)]) and len(value) == 2 and value[1] is not None


def _measured(value: Any) -> bool:
    """Maybe not finite: training can go wrong, and that is shown."""
    return value is None or type(value) is float or _number(value)


_weights = (_none, [(_measured, [_measured])])  # one for each site, or a list of one a layer
_scored = (_none, {"mean": _measured, "sites": (_none, {str: _measured})})
_event = {"site!": str, "what!": str, "call": str, "reason": (_none, str)}
_verdict = {"gain!": _number, "error!": _number, "paid!": bool, "next!": _count,
            "to_sizes": bool, "over_sizes": _number, "over_sizes_error": _number}  # fmt: skip
_sha256 = ("split_sha256", "content_sha256", "folds_sha256")
_row = {"name!": str, "label": str, "rounds": _count, "task": dict, "method": dict}
_compared = {"score!": _number, "gain!": _number, "margin!": _number, "sites!": {str: _number}}


def _compared_rows(value: Any) -> bool:
    """Scores by model, of the fitted weights and of those that they are compared with at least."""
    needed = {"fedavg", "network", "layer", "scaled"}
    return _fits(value, {str: _compared}) and needed <= value.keys()


_fit = {"alpha!": _weights, "shrink": _number, "best!": str}
SHAPES: dict[str, dict[str, Any]] = {
    "status.json": {
        "schema": _count,
        "state": str,
        "error": str,
        "kind": str,
        "scores_sha256": str,
    },
    "environment.json": {
        "seed": _count,
        "metric": str,
        "data": {
            "cases!": {str: {str: _count}},
            "data!": str,
            "sizes": {str: _count},
            "validation_is": str,
            **dict.fromkeys(_sha256, str),
        },
        "versions": {str: (_none, str)},
        "resumed": [{"after_round!": _count}],
        "folds": (_none, [_count]),
        "layers": (_none, [str]),
    },
    "origins.json": {"schema": _count, "origins!": {str: str}},
    "config.toml": {
        "name": str,
        "label": str,
        "rounds": _count,
        "select": str,
        "task": {"name!": str, "fold": int},
        "training": dict,
        "method": {"name!": str, "learn_on": str, "steps_per_message": _count},
        "exchange": dict,
    },
    "study.json": {
        "name": str,
        "title": str,
        "baseline": str,
        "rows": [str],
        "runs!": [{"config!": _row, "jobs!": [_job], "machines": [dict]}],
    },
    "ceiling.json": {
        "schema": _count,
        "split!": str,
        "metric!": str,
        "fit!": {"steps!": _count, "rate!": _number},
        "sites!": [str],
        "bytes": _number,
        "rounds!": [{"t!": _count, "rows!": _compared_rows, "fits!": {str: [_fit]}}],
    },
    "rounds.jsonl": {
        "schema": _count,
        "t!": _count,
        "alpha": _weights,
        "beta": _weights,
        "loss": {str: _measured},
        "learning_loss": {str: [_measured]},
        "verdict": _verdict,
        "validation": _scored,
        "validation_local": (_none, {str: _measured}),
        "spent": {str: [[(str, _number)]]},
        "epsilon": {str: _number},
        "test": _scored,
        "calls": {str: {str: _number}},
        "bytes_down": _number,
        "bytes_up": _number,
        "answered": (_none, [str]),
        "blind": {str: _measured},
        "events": (_none, [_event]),
        "time": _number,
    },
}
