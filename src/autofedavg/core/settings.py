"""Settings that know where their default comes from: the paper, a derivation, or us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from autofedavg.core.errors import ConfigError


class Settings(BaseModel):
    """Frozen values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def setting(default: Any, *, origin: str, help: str, **limits: Any) -> Any:
    """A field with its origin.

    Args:
        default: the value used when a study is silent; a function of the settings before it
            where the default depends on them.
        origin: "paper ..." with the section, "derived ..." or "ours ...".
        help: one line for `check` and the reference page.
        **limits: what pydantic's `Field` takes, such as `ge=1`.
    """
    if origin.split()[0].rstrip(":") not in {"paper", "derived", "ours"}:
        raise ConfigError(
            f"origin {origin!r} of a setting names none of the three kinds",
            where="settings.setting",
            remedy="start it with paper, derived or ours",
        )
    given = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**given, description=help, json_schema_extra={"origin": origin}, **limits)


def origins(settings: Settings, prefix: str = "") -> Iterator[tuple[str, Any, str, str]]:
    """(path, value, origin, help) of every setting; "study" is the origin of what a study sets."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        path = f"{prefix}{name}"
        if isinstance(value, Settings):
            yield from origins(value, f"{path}.")
            continue
        extra = field.json_schema_extra
        own = str(extra.get("origin", "ours")) if isinstance(extra, dict) else "ours"
        yield (
            path,
            value,
            ("study" if name in settings.model_fields_set else own),
            field.description or "",
        )
