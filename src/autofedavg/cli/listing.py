"""The verb about what there is: list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from autofedavg.cli.app import AsJson, echo
from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.core.registry import Registry

ABOUT_ENGINES = {
    "simulator": "All sites on this machine, in worker processes.",
    "flare": "NVIDIA FLARE: the server and every site are processes that talk over TLS.",
    "flower": "Flower: the server and every site are processes that talk over TLS.",
}


def list_(
    what: Annotated[str, typer.Argument(help="studies, methods, tasks or engines.")],
    as_json: AsJson = False,
) -> None:
    """List the built-in studies, or the methods, tasks and engines; other packages' included."""
    from autofedavg.methods import METHODS
    from autofedavg.studies.study_file import builtin_studies
    from autofedavg.tasks import TASKS

    listed: dict[str, Callable[[], dict[str, str]]] = {
        "studies": builtin_studies,
        "methods": lambda: _with_families(about),
        "tasks": lambda: dict.fromkeys(TASKS, "") if as_json else _rules(_abouts(TASKS)),
        "engines": lambda: ABOUT_ENGINES,
    }
    if what not in listed:
        raise ConfigError(f"{what!r} cannot be listed", remedy=did_you_mean(what, listed))
    about = _abouts(METHODS) if what == "methods" else {}
    lines = listed[what]()
    width = max(map(len, lines))
    text = "\n".join(f"{name:<{width}}  {line}" for name, line in lines.items())
    fields = [{"name": name, **told} for name, told in about.items()]
    echo(fields or [*lines], text, as_json)


def _abouts(registry: Registry) -> dict[str, dict[str, str]]:
    """What each class says `about` itself, or its docstring's first line, or why it is unusable."""
    from autofedavg.methods.base import About

    found = {}
    for name in registry:
        try:
            kind = registry[name]
        except ConfigError as error:
            found[name] = {"family": "", "rule": f"cannot be used: {error}"}
            continue
        about = getattr(kind, "about", None)
        first = (kind.__doc__ or "").strip().partition("\n")[0]
        found[name] = asdict(about) if isinstance(about, About) else {"family": "", "rule": first}
    return found


def _rules(about: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: told["rule"] for name, told in about.items()}


def _with_families(about: dict[str, dict[str, str]]) -> dict[str, str]:
    wide = max(len(told["family"]) for told in about.values())
    return {name: f"{told['family']:<{wide}}  {told['rule']}" for name, told in about.items()}
