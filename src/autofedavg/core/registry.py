"""Names that stand for classes, imported only when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from autofedavg.core.errors import ConfigError, did_you_mean


class Registry(Mapping[str, Any]):
    """A read-only table of name -> "module:attribute" that imports on look-up.

    Keeps `autofedavg --help` and `list` fast: torch and MONAI are loaded by the entry used only.
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            raise ConfigError(
                f"{name!r} is not a known {self.kind}", remedy=did_you_mean(name, self._entries)
            )
        module, attribute = self._entries[name].split(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
