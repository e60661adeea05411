"""A first study for a data list, ready to run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from autofedavg.tasks.lists.listing import read_listing

STUDY = """\
# A first study of {list_name}: {cases} cases of {count} sites ({sites}).
# `autofedavg check` prints every setting with its origin, `autofedavg run` runs it.

[study]
name = {name}
title = {title}
seeds = [0]             # the paper repeats everything three times: [0, 1, 2]
{folds}baseline = "fedavg"     # the row the others are tested against

[base]
rounds = 50             # T; the paper's 300 take six times as long

[base.task]
name = "datalist"
datalist = {path}  # paths that are not absolute begin at this file's folder
{more}# What is left out is worked out from the data (`autofedavg data inspect` shows it), or set:
# pipeline = {{ spacing = [1.0, 1.0, 3.0], normalise = "window", window = [-1000.0, 500.0] }}

[base.training]
iterations = 20         # M_k, steps at every site and round; the paper's 300 suit large sites
batch_size = 2          # the paper's 4 need more memory
learning_rate = 1e-3    # the paper's 1e-4 suit its many steps

[[run]]
name = "fedavg"
label = "FedAvg"
method = {{ name = "fedavg", weights = "size" }}

[[run]]
name = "fedavg-even"
label = "FedAvg - even"
method = {{ name = "fedavg", weights = "even" }}

# Learns the weights of the sites from their validation cases.
[[run]]
name = "n-dirichlet"
label = "Auto-FedAvg-N-Dirichlet"
method = {{ name = "auto-fedavg", weights = "network", constraint = "dirichlet", S = 10 }}
"""


def starting_study(
    list_path: Path, root: str = "", *, allow_outside: bool = False, folder: Path | None = None
) -> str:
    """A commented study file for a data list.

    Args:
        list_path: the list.
        root: folder the list's paths begin at; the list's own when empty.
        allow_outside: whether paths may lead out of that folder.
        folder: where the study will be saved: its paths then begin there, so that both can be
            moved together. Without it they are absolute.

    Raises:
        DataError: the list cannot be used.
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
        splits = "# Splits are drawn by patient and saved beside the list.\nsplit_seed = 0\n"
    # A root that is no folder here is a name to be looked for below AUTOFEDAVG_DATA.
    named = _path(Path(root), folder) if Path(root).is_dir() else root
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", list_path.stem).lstrip("._-") or "study"
    return STUDY.format(
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
