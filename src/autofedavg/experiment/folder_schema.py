"""What the files of a run folder may hold: kinds of values, not whether they make sense.

What is missing is not missed here: earlier versions wrote less. Readers say what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

HUGE = 1e100  # no number of a run is larger; sums and squares of these are still numbers
Fits = Callable[[Any], bool]


def check(values: Mapping[str, Any], kind: str) -> None:
    """Refuses values of another kind than a run writes.

    Args:
        values: those of a file, or of one line.
        kind: the file's name.

    Raises:
        ValueError: names the value.
    """
    for key, fits in SHAPES.get(kind, {}).items():
        if key in values and not fits(values[key]):
            raise ValueError(f"{key!r} is not what a run writes")
    for key in NEEDED.get(kind, ()):
        if key not in values:
            raise ValueError(f"{key!r} is missing")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 2**63


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -HUGE <= value <= HUGE


def _measured(value: Any) -> bool:
    """A number that may be none, or not finite: training can go wrong, and that is shown."""
    return value is None or type(value) is float or _number(value)


def _none_or(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _table(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _record(needed: tuple[str, ...] = (), **shapes: Fits) -> Fits:
    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or any(key not in value for key in needed):
            return False
        return all(shapes[key](value[key]) for key in shapes.keys() & value.keys())

    return fits


def _job(value: Any) -> bool:
    """(fold, seed)."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and (value[0] is None or _count(value[0]))
        and _count(value[1])
    )


def _weights(value: Any) -> bool:
    """One for each site, or a list of one for each layer."""
    each = _list(lambda one: _measured(one) or _list(_measured)(one))
    return value is None or each(value)


_scored = _none_or(_record(mean=_measured, sites=_none_or(_table(_measured))))
_task = _record(("name",), name=_text, fold=lambda value: type(value) is int)
_event = _record(("site", "what"), site=_text, what=_text, call=_text, reason=_none_or(_text))
_data = _record(
    ("cases", "data"),
    cases=_table(_table(_count)),
    sizes=_table(_count),
    data=_text,
    split_sha256=_text,
    content_sha256=_text,
    folds_sha256=_text,
    validation_is=_text,
)
_row = _record(
    ("config", "jobs"),
    config=_record(
        ("name",), name=_text, label=_text, rounds=_count, task=_record(), method=_record()
    ),
    jobs=_list(_job),
    machines=_list(_record()),
)
SHAPES: dict[str, dict[str, Fits]] = {
    "status.json": {"schema": _count, "state": _text, "error": _text, "kind": _text},
    "environment.json": {
        "seed": _count,
        "metric": _text,
        "data": _data,
        "versions": _table(_none_or(_text)),
        "resumed": _list(_record(("after_round",), after_round=_count)),
        "folds": _none_or(_list(_count)),
        "layers": _none_or(_list(_text)),
    },
    "origins.json": {"schema": _count, "origins": _table(_text)},
    "config.toml": {
        "name": _text,
        "label": _text,
        "rounds": _count,
        "select": _text,
        "task": _task,
        "training": _record(),
        "method": _record(("name",), name=_text, learn_on=_text, steps_per_message=_count),
        "exchange": _record(),
    },
    "study.json": {
        "name": _text,
        "title": _text,
        "baseline": _text,
        "rows": _list(_text),
        "runs": _list(_row),
    },
    "rounds.jsonl": {
        "schema": _count,
        "t": _count,
        "alpha": _weights,
        "beta": _weights,
        "loss": _table(_measured),
        "learning_loss": _table(_list(_measured)),
        "validation": _scored,
        "validation_local": _none_or(_table(_measured)),
        "test": _scored,
        "calls": _table(_table(_number)),
        "bytes_down": _number,
        "bytes_up": _number,
        "answered": _none_or(_list(_text)),
        "events": _none_or(_list(_event)),
        "time": _number,
    },
}
NEEDED: dict[str, tuple[str, ...]] = {
    "origins.json": ("origins",),
    "rounds.jsonl": ("t",),
    "study.json": ("runs",),
}
