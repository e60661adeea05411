"""Checks plain values against settings, and says what is wrong with them, all at once."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.core.registry import Registry

Values = dict[str, Any]
A_RUN = "a run"
PARTS = ("task", "training", "method", "exchange", "privacy")  # the tables of a row


def pick(registry: Registry, content: Values, place: str, part: str) -> Any:
    """The registered settings class that a table's `name` asks for."""
    if "name" not in content:
        raise ConfigError(
            f"{part}.name is missing", where=place, remedy=f"choose from: {', '.join(registry)}"
        )
    try:
        return registry[str(content["name"])]
    except ConfigError as error:
        raise ConfigError(error.what, where=place, remedy=error.remedy) from error


def validate(kind: Any, content: Values, place: str, part: str, whole: str = A_RUN) -> Any:
    """Checks one table, or the head of a `whole`; all its mistakes are told at once."""
    try:
        # JSON mode: TOML's arrays may fill tuples, and nothing else is coerced.
        return kind.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        # A default that depends on a wrong setting is not a mistake of its own.
        items = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
        told = [_explain(kind, item, part, content, whole) for item in _merged(kind, items)]
    except (TypeError, ValueError) as error:
        told = [f"{part or 'a value'} cannot be used: {error}"]
    raise ConfigError("; ".join(told), where=place)


def _merged(kind: Any, items: Sequence[Any]) -> list[Any]:
    """One mistake per setting, where pydantic tells one per alternative that it could have been."""
    found: dict[tuple[Any, ...], Any] = {}
    for item in items:
        owner, place = kind, []
        for step in item["loc"]:
            fields = getattr(owner, "model_fields", {})
            if item["type"] != "extra_forbidden" and step not in fields:
                break
            place.append(step)
            owner = fields[step].annotation if step in fields else None
        known = found.get(tuple(place))
        if known is None or len(place) == len(item["loc"]):
            found[tuple(place)] = {**item, "loc": tuple(place)}
        elif item["msg"] not in known["msg"]:
            also = item["msg"].removeprefix("Input should be ")
            known["msg"] = f"{known['msg']}, or {also}"
    return list(found.values())


def _explain(kind: Any, item: Any, part: str, content: Values, whole: str) -> str:
    inner = [str(step) for step in item["loc"]]
    path = ".".join(([part] if part else []) + inner)
    if item["type"] == "extra_forbidden":
        owner = kind
        for step in inner[:-1]:
            owner = owner.model_fields[step].annotation
        known = list(owner.model_fields)
        if not part and whole == A_RUN:
            known += ["name", "label", *PARTS]
        of = content.get("name", part) if part else whole
        return f"{path} is not a setting of {of}; {did_you_mean(inner[-1], known)}"
    message = item["msg"].removeprefix("Value error, ")  # our own words begin as they should
    if message == item["msg"]:
        message = f"{message[0].lower()}{message[1:]}"
    given = f" (given: {item['input']!r})" if inner and not isinstance(item["input"], dict) else ""
    return f"{path}: {message}{given}" if path else f"{message}{given}"


def override(values: Values, text: str) -> None:
    """Applies one `--set key=value`; the value is read as TOML, or else as a string."""
    key, equals, given = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not key=value", remedy="e.g. --set method.t0=5")
    try:
        value = tomllib.loads(f"value = {given}")["value"]
    except tomllib.TOMLDecodeError:
        value = given
    *tables, leaf = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {text!r}: {table} is a value, not a table")
    values[leaf] = value


def merge(base: Mapping[str, Any], row: Mapping[str, Any]) -> Values:
    """`base` with what `row` sets, table by table."""
    merged = {key: merge(v, {}) if isinstance(v, dict) else v for key, v in base.items()}
    for key, value in row.items():
        old = merged.get(key)
        merged[key] = (
            merge(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
        )
    return merged


def table(raw: Values, key: str, where: str) -> Values:
    """The table called `key`, empty when there is none."""
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"[{key}] must be a table", where=where)
    return value


def refuse_unknown(values: Values, known: set[str], where: str) -> None:
    """Refuses keys that are not known, suggesting the nearest."""
    for key in values:
        if key not in known:
            raise ConfigError(
                f"{key} is not known here", where=where, remedy=did_you_mean(key, known)
            )
