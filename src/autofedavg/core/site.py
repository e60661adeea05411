"""An institution that takes part, and plain values about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Facts = dict[str, Any]


class Site(NamedTuple):
    """An institution: its name and its number of cases per split."""

    name: str
    cases: Mapping[str, int]
