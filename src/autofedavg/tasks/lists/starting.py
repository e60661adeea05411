"""A first study for a data list, ready to run."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path

from autofedavg.tasks.lists.listing import read_listing


def starting_study(
    list_path: Path, root: str = "", *, allow_outside: bool = False, folder: Path | None = None
) -> str:
    """A commented study file for a data list.

    Args:
        list_path: the list.
        root: folder that the list's paths are relative to; the list's own when empty.
        allow_outside: whether paths may lead out of that folder.
        folder: where the study will be saved; its paths are relative to it, so that both can be
            moved together. Without it they are absolute.
    """
    start = Path(root).absolute() if root else list_path.absolute().parent
    listing = read_listing(list_path, start, allow_outside=allow_outside)
    sites = listing.sites()
    folds = sorted({entry.fold for entry in listing.entries if entry.fold is not None})
    crossed = len(folds) > 2 and all(entry.fold is not None for entry in listing.entries)
    if crossed:
        splits = "# The splits are the list's folds.\n"
    elif all(entry.split for entry in listing.entries):
        splits = "# The splits are the list's.\n"
    else:
        splits = "# Splits are drawn by patient and saved next to the list.\nsplit_seed = 0\n"
    # A root that is not a folder here is the name of one below AUTOFEDAVG_DATA.
    named = _path(Path(root), folder) if Path(root).is_dir() else root
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", list_path.stem).lstrip("._-") or "study"
    template = files("autofedavg.tasks.lists") / "first_study.toml"
    return template.read_text(encoding="utf-8").format(
        list_name=_comment(list_path.name),
        cases=len(listing.entries),
        count=len(sites),
        sites=_comment(", ".join(sites)),
        name=_quoted(name),
        folds=f"folds = {folds}  # each is tested once; the next one validates\n"
        if crossed
        else "",
        title=_quoted(f"A first study of {list_path.name}"),
        path=_quoted(_path(list_path, folder)),
        more=(f"root = {_quoted(named)}\n" if root else "")
        + "allow_outside = true    # the list's paths may lead out of its folder\n" * allow_outside
        + splits,
    )


def _path(path: Path, folder: Path | None) -> str:
    whole = path.absolute()
    return str(whole) if folder is None else os.path.relpath(whole, folder.absolute())


def _quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
