"""Names that stand for classes: ours, and those that other packages add by entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from autofedavg.core.errors import ConfigError, did_you_mean


class Registry(Mapping[str, Any]):
    """A read-only table of name -> "module:attribute" that imports on look-up.

    Keeps `autofedavg --help` fast, and confines the damage of a package that cannot be imported:
    only the use of its own names fails.

    Args:
        kind: what the names stand for, in errors.
        entries: our own names.
        group: the entry points under which installed packages add names.
        base: "module:attribute" of the class that added ones must derive from.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, str], group: str = "", base: str = ""
    ) -> None:
        self.kind = kind
        self._entries, self._group, self._base = dict(entries), group, base

    @cached_property
    def _added(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name; more than one where several packages claim it."""
        found: dict[str, list[EntryPoint]] = {}
        if self._group:
            for point in sorted(entry_points(group=self._group), key=lambda p: (p.name, _owner(p))):
                found.setdefault(point.name, []).append(point)
        return found

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise ConfigError(
                f"{name!r} is not a known {self.kind}", remedy=did_you_mean(name, self)
            )
        points = self._added.get(name, [])
        if len(points) + (name in self._entries) > 1:
            owners = ["autofedavg"] * (name in self._entries) + [_owner(p) for p in points]
            raise ConfigError(
                f"the {self.kind} {name!r} is defined by several packages: {', '.join(owners)}",
                remedy=f"uninstall {_owner(points[-1])}, or rename the entry point",
            )
        return self._load(points[0]) if points else _load(self._entries[name])

    def _load(self, point: EntryPoint) -> Any:
        place = f"{self._group}: {point.name} = {point.value!r} of {_owner(point)}"
        try:
            found = point.load()
        except Exception as error:  # another package's code: anything may be raised
            raise ConfigError(
                f"the {self.kind} {point.name!r} cannot be imported: "
                f"{type(error).__name__}: {error}",
                where=place,
                remedy=f"repair or uninstall {_owner(point)}",
            ) from error
        if not (isinstance(found, type) and issubclass(found, _load(self._base))):
            raise ConfigError(
                f"{point.value} is not a subclass of {self._base.replace(':', '.')}", where=place
            )
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._added

    def __iter__(self) -> Iterator[str]:
        return iter([*self._entries, *(name for name in self._added if name not in self._entries)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _load(target: str) -> Any:
    module, attribute = target.split(":")
    return getattr(import_module(module), attribute)


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
