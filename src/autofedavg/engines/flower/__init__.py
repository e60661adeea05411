"""Flower: SuperLink and SuperNodes carry the notes.

Flower starts a new process for every message, so nothing here is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {"Loopback": "loopback", "export": "export"}

__all__ = ["Loopback", "export"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autofedavg.engines.flower' has no attribute {name!r}")
    return getattr(import_module(f"autofedavg.engines.flower.{_WHERE[name]}"), name)
