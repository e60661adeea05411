"""Verbs for real engines: export writes a job, allow lets a FLARE startup kit run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autofedavg.cli.app import AsJson, Sets, echo
from autofedavg.cli.studies import StudyName, Wait


def export(
    engine: Annotated[str, typer.Argument(help="flare or flower.")],
    study: StudyName,
    only: Annotated[str, typer.Option("--only", help="The row to export.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    seed: Annotated[
        int | None, typer.Option(help="Seed of the run (default: the study's first).", min=0)
    ] = None,
    fold: Annotated[
        int | None, typer.Option(help="Test fold, in a study with folds.", min=0)
    ] = None,
    sites: Annotated[
        str,
        typer.Option(help="Names of the sites, e.g. A,B,C, if their data is not on this machine."),
    ] = "",
    wait: Wait = 600.0,
    threads: Annotated[
        int | None, typer.Option(help="Threads per site (default: the site's own).", min=1)
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Write a job folder, which an administrator submits with the engine's own tools."""
    from autofedavg.studies.export_job import export_job

    names = [name.strip() for name in sites.split(",") if name.strip()]
    made = export_job(
        engine,
        study,
        only,
        out,
        seed=seed,
        fold=fold,
        sites=names or None,
        wait=wait,
        threads=threads,
        overrides=sets or [],
    )
    echo({"folder": str(made)}, f"job: {made}", as_json)


def allow(
    kit: Annotated[Path, typer.Argument(help="FLARE startup kit of a server or a site.")],
    as_json: AsJson = False,
) -> None:
    """Let a FLARE startup kit run this package's part of a job, and no other code."""
    from autofedavg.engines.flare.allow import allow as put

    done = put(kit)
    whom = ", ".join(done.roles) or "nobody had the right"
    lines = [
        f"allowed: {done.name}",
        f"denied: code in jobs, and files of this kit ({whom}; other rules: {done.policy})",
    ]
    lines += ["closed: to messages of other sites"] if done.is_site else []
    content = {"allowed": done.name, "policy": done.policy, "denied": done.roles}
    echo(content, "\n".join(lines), as_json)
