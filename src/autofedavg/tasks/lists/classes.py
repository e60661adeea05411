"""Classes that a data list leaves open: found in its labels, where that can be meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.preparation import few
from autofedavg.tasks.lists.fingerprint import CaseFacts, Fingerprint
from autofedavg.tasks.lists.listing import Listing

MOST = 32  # different values that are taken for classes unasked


def found_classes(listing: Listing, seen: Fingerprint) -> dict[str, tuple[int, ...]]:
    """Every value of the labels as a class of its own.

    Raises:
        DataError: there are none, or what is found can hardly be meant so.
    """
    values = seen.values()
    if not values:
        raise DataError(
            "every label is empty", where=str(listing.path), remedy="look at the label files"
        )
    if len(values) > MOST:
        most = sorted(_cases(listing, seen), key=lambda case: -len(case[1].voxels))[:3]
        named = ", ".join(f"{name} ({len(facts.voxels)})" for name, facts in most)
        raise DataError(
            f"the labels hold {len(values)} different values, most in {named}",
            where=str(listing.path),
            remedy="look whether these are labels, not images, or set task.classes",
        )
    own = {
        site: sorted({value for case in cases for value in case.voxels if value})
        for site, cases in seen.sites.items()
    }
    for one, two in combinations((site for site in own if own[site]), 2):
        if not set(own[one]) & set(own[two]):
            raise DataError(
                f"the labels of {one} hold {few(own[one])}, those of {two} "
                f"{few(own[two])}: no value in common",
                where=str(listing.path),
                remedy="say what they mean, e.g. task.classes = { lesion = "
                f"[{own[one][0]}, {own[two][0]}] }}",
            )
    return {str(value): (value,) for value in values}


def refuse_strangers(
    listing: Listing, seen: Fingerprint, classes: Mapping[str, tuple[int, ...]], channels: int
) -> None:
    """Refuses labels and images that are not what the settings say, all at once.

    Raises:
        DataError: lists the cases.
    """
    known = {value for values in classes.values() for value in values} | {0}
    wrong = [
        f"{name}: its label holds {few(sorted(set(facts.voxels) - known))}"
        for name, facts in _cases(listing, seen)
        if set(facts.voxels) - known
    ]
    if channels and channels != seen.channels:
        wrong.append(f"images have {seen.channels} channels, and task.image_channels is {channels}")
    if wrong:
        raise DataError(
            "the files are not what the settings say:\n  " + "\n  ".join(wrong),
            where=str(listing.path),
            remedy=f"mend them, or task.classes (now {', '.join(classes)}) and task.image_channels",
        )


def _cases(listing: Listing, seen: Fingerprint) -> Iterator[tuple[str, CaseFacts]]:
    for site, entries in listing.sites().items():
        for entry, facts in zip(entries, seen.sites[site], strict=True):
            yield f"{site}/{entry.case}", facts
