"""The classes of a data list: as it defines them, or as its labels hold them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.preparation import few

if TYPE_CHECKING:
    from autofedavg.tasks.lists.fingerprint import Fingerprint
    from autofedavg.tasks.lists.listing import Listing

MOST = 32  # different values that become classes without being named


def classes_of(content: dict[str, Any], path: Path) -> dict[str, tuple[int, ...]]:
    """The Decathlon's {"1": "liver"}, or MONAI's {"liver": 1}; background is left out."""
    labels = content.get("labels", {})
    found: dict[str, list[int]] = {}
    if isinstance(labels, dict):
        for key, value in labels.items():
            name, numbers = (value, key) if key.isdecimal() else (key, value)
            for number in numbers if isinstance(numbers, list) else [numbers]:
                if not str(number).isdecimal():
                    raise DataError(
                        f"class {name!r} has the value {number!r}, not a number from 0",
                        where=f"{path}: labels",
                        remedy='write {"1": "name"} or {"name": 1}',
                    )
                if int(number):
                    found.setdefault(str(name), []).append(int(number))
    values = [value for numbers in found.values() for value in numbers]
    if twice := sorted({value for value in values if values.count(value) > 1}):
        raise DataError(
            f"{twice} mean more than one class each",
            where=f"{path}: labels",
            remedy="give every value one class; overlapping classes are not supported",
        )
    ordered = sorted(found.items(), key=lambda item: item[1])
    return {name: tuple(values) for name, values in ordered}


def found_classes(listing: Listing, seen: Fingerprint) -> dict[str, tuple[int, ...]]:
    """Every value of the labels as a class of its own; raises DataError if that is implausible."""
    values = seen.values()
    if not values:
        raise DataError(
            "every label is empty", where=str(listing.path), remedy="check the label files"
        )
    if len(values) > MOST:
        most = sorted(seen.named(), key=lambda case: -len(case[1].voxels))[:3]
        named = ", ".join(f"{name} ({len(facts.voxels)})" for name, facts in most)
        raise DataError(
            f"the labels hold {len(values)} different values, most in {named}",
            where=str(listing.path),
            remedy="check that these are labels, not images, or set task.classes",
        )
    own = {
        site: sorted({value for facts in cases.values() for value in facts.voxels if value})
        for site, cases in seen.sites.items()
    }
    for one, two in combinations((site for site in own if own[site]), 2):
        if not set(own[one]) & set(own[two]):
            raise DataError(
                f"the labels of {one} hold {few(own[one])}, those of {two} "
                f"{few(own[two])}: no value in common",
                where=str(listing.path),
                remedy="name the classes, e.g. task.classes = { lesion = "
                f"[{own[one][0]}, {own[two][0]}] }}",
            )
    return {str(value): (value,) for value in values}


def refuse_strangers(
    listing: Listing, seen: Fingerprint, classes: Mapping[str, tuple[int, ...]], channels: int
) -> None:
    """Raises a DataError that lists all labels and images that do not fit the settings."""
    known = {value for values in classes.values() for value in values} | {0}
    wrong = [
        f"{name}: its label holds {few(sorted(set(facts.voxels) - known))}"
        for name, facts in seen.named()
        if set(facts.voxels) - known
    ]
    if channels and channels != seen.channels:
        wrong.append(f"images have {seen.channels} channels, and task.image_channels is {channels}")
    if wrong:
        raise DataError(
            "the files do not fit the settings:\n  " + "\n  ".join(wrong),
            where=str(listing.path),
            remedy=f"correct them, or task.classes ({', '.join(classes)}) and task.image_channels",
        )
