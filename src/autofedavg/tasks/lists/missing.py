"""Files of a data list that are not there: which, where they were looked for, and what to do."""

from __future__ import annotations

from pathlib import Path

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.cache import data_home
from autofedavg.tasks.lists.listing import ListedCase, Listing

PACKAGE = Path(__file__).parents[2]


def missing_files(entries: tuple[ListedCase, ...]) -> list[tuple[ListedCase, Path]]:
    """The files that are not there, with their cases."""
    return [
        (entry, path)
        for entry in entries
        for path in (*entry.image, entry.label)
        if not path.exists()
    ]


def refuse_missing(listing: Listing, root: str) -> None:
    """Refuses a list with missing files.

    Args:
        listing: the list.
        root: task.root, as it was set; empty where paths begin at the list's folder.

    Raises:
        DataError: lists all missing files; a site without any of its files takes one line.
    """
    lacking = missing_files(listing.entries)
    if lacking:
        raise DataError(
            f"{len(lacking)} files are missing:\n  " + "\n  ".join(_lines(listing, lacking)),
            where=str(listing.path),
            remedy=_remedy(listing, root),
        )


def refuse_absent(listing: Listing, root: str) -> None:
    """The same for a list that has a site without any of its files; other lists are read first."""
    lacking = missing_files(listing.entries)
    if lacking and _absent(listing, lacking):
        refuse_missing(listing, root)


def _absent(listing: Listing, lacking: list[tuple[ListedCase, Path]]) -> dict[str, int]:
    """The sites without any of their files, and how many those are."""
    files = {
        site: sum(len(entry.image) + 1 for entry in entries)
        for site, entries in listing.sites().items()
    }
    lost = [entry.site for entry, _ in lacking]
    return {site: count for site, count in files.items() if lost.count(site) == count}


def _lines(listing: Listing, lacking: list[tuple[ListedCase, Path]]) -> list[str]:
    absent, lines = _absent(listing, lacking), []
    for site in listing.sites():
        if site in absent:
            lines.append(f"{site}: none of its {absent[site]} files is in {listing.root}")
        else:
            lines += [f"{e.site}, {e.case}: {path}" for e, path in lacking if e.site == site]
    return lines


def _remedy(listing: Listing, root: str) -> str:
    remedy = "put them there, or set task.root to the folder the list's paths begin at"
    name = Path(root).name
    if name and listing.root != data_home(name).absolute():
        remedy = (
            f"set task.root to the folder the list's paths begin at, or AUTOFEDAVG_DATA to a "
            f"folder that has {name} ({data_home(name).absolute()} is none)"
        )
    if PACKAGE in listing.path.absolute().parents:
        remedy += "; docs/how-to/data.md says where to get the files"
    return remedy
