"""Nested values as TOML text, with a comment behind each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from autofedavg.experiment.validation import Values

_BARE = re.compile(r"[A-Za-z0-9_-]+")  # keys that TOML takes without quotes


def to_toml(values: Values, comments: Mapping[str, str] | None = None) -> str:
    """Nested values as TOML; `comments` maps dotted paths to what is said behind the value."""
    return "\n".join(_toml(values, "", comments or {})) + "\n"


def _toml(values: Values, table: str, said: Mapping[str, str]) -> Iterator[str]:
    """TOML lines of nested values; JSON's scalars, arrays and empty tables are also TOML's."""
    for key, value in values.items():
        if not isinstance(value, dict) or not value:
            quoted = key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
            text = f"{quoted} = {json.dumps(value, ensure_ascii=False)}"
            origin = said.get(f"{table}{key}", said.get(table[:-1]))
            yield f"{text}  # {origin}" if origin else text
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from ("", f"[{table}{key}]")
            yield from _toml(value, f"{table}{key}.", said)
