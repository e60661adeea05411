"""Settings as values that JSON and TOML can hold, and those of older run folders completed."""

from __future__ import annotations

import json

from autofedavg.core.settings import Settings
from autofedavg.experiment.validation import Values


def filled(kind: type[Settings], values: Values) -> Values:
    """Values of an older run folder, with the settings that it lacks at their defaults."""
    # Checks nothing: what an older version has run is not refused by the rules of this one.
    whole, made = kind.model_construct(**values), dict(values)
    for name, field in kind.model_fields.items():
        known = values.get(name)
        if isinstance(field.default, Settings) and isinstance(known, dict):
            made[name] = filled(type(field.default), known)
        elif name not in values:
            value = getattr(whole, name)
            made[name] = (
                plain(value) if isinstance(value, Settings) else json.loads(json.dumps(value))
            )
    return made


def plain(settings: Settings, given_only: bool = False) -> Values:
    """Settings as values that JSON and TOML can hold."""
    values: Values = json.loads(settings.model_dump_json(exclude_unset=given_only))
    return values
