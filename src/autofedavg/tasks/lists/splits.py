"""Splits of a data list: given by the list, by fold, or drawn by patient."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from autofedavg.core.errors import DataError
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.tasks.imaging.cache import unfinished
from autofedavg.tasks.lists.listing import ListedCase, Listing

Split = dict[str, dict[str, str]]  # site -> case -> train, validation or test
THREE = ("train", "validation", "test")


def splits_of(
    listing: Listing, fold: int, shares: Sequence[float], seed: int, holdout: float
) -> Split:
    """The split of every case of a list; raises DataError if a site cannot be split.

    Args:
        listing: the data list.
        fold: the test fold, the next one validates; -1 when folds are not used.
        shares: of train, validation and test, where splits are drawn.
        seed: of the draw.
        holdout: share of each site's training patients in the holdout.
    """
    if fold >= 0:
        found = _by_fold(listing, fold)
    else:
        found = {
            site: {entry.case: entry.split for entry in entries}
            for site, entries in listing.sites().items()
        }
        _refuse_some(listing, found)
        if not all(split for cases in found.values() for split in cases.values()):
            found |= _drawn(listing, found, shares, seed)
    _refuse_shared_patients(listing, found)
    return _set_aside(listing, found, holdout, seed) if holdout else found


def split_digest(splits: Mapping[str, Mapping[str, str]]) -> str:
    """A digest of the split of every case."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


def split_file(listing: Listing, seed: int) -> Path:
    """The file of drawn splits, in the folder of the list."""
    return listing.path.with_name(f"{listing.path.stem}.split-{seed}.json")


def _by_fold(listing: Listing, fold: int) -> Split:
    without = [f"{e.site}/{e.case}" for e in listing.entries if e.fold is None]
    if without:
        raise DataError(
            f"{len(without)} cases have no fold, e.g. {without[0]}",
            where=str(listing.path),
            remedy="give every case a fold, or set task.fold = -1",
        )
    count = max(entry.fold or 0 for entry in listing.entries) + 1
    if count < 3 or fold >= count:
        raise DataError(
            f"there is no fold {fold}: the list's folds are 0 to {count - 1}",
            where=str(listing.path),
            remedy="choose one of them; at least three are needed to test, validate and train",
        )
    role = {fold: "test", (fold + 1) % count: "validation"}
    return {
        site: {entry.case: role.get(entry.fold or 0, "train") for entry in entries}
        for site, entries in listing.sites().items()
    }


def _refuse_some(listing: Listing, found: Split) -> None:
    for site, cases in found.items():
        if any(cases.values()) and not all(cases.values()):
            case = next(case for case, split in cases.items() if not split)
            raise DataError(
                f"some cases of site {site} have a split and others, e.g. {case}, have none",
                where=str(listing.path),
                remedy="give all cases of a site a split, or none",
            )


def _drawn(listing: Listing, found: Split, shares: Sequence[float], seed: int) -> Split:
    """The splits of sites that have none: drawn once, then read from the file of drawn splits."""
    path = split_file(listing, seed)
    open_sites = {s: es for s, es in listing.sites().items() if not any(found[s].values())}
    if path.exists():
        return _kept(path, open_sites, shares)
    _refuse_small(listing, open_sites)
    drawn = {site: _draw(site, entries, shares, seed) for site, entries in open_sites.items()}
    content = {"list": listing.path.name, "seed": seed, "shares": list(shares), "sites": drawn}
    making = unfinished(path)
    try:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        making.write_text(text, encoding="utf-8")
        making.replace(path)  # another process may be reading or drawing the same
    except OSError as error:
        making.unlink(missing_ok=True)
        raise DataError(
            f"the splits cannot be saved: {error.strerror}",
            where=str(path),
            remedy="make the folder writable, or give the list a column `split`",
        ) from error
    return drawn


def _kept(
    path: Path, open_sites: Mapping[str, Sequence[ListedCase]], shares: Sequence[float]
) -> Split:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kept: Split = content["sites"]
        drawn_by = [float(share) for share in content["shares"]]
        listed = {(site, case) for site, cases in kept.items() for case in cases}
        strange = {s for cases in kept.values() for s in cases.values()} - set(THREE)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(
            f"cannot be read ({type(error).__name__}: {error})",
            where=str(path),
            remedy="remove it to draw new splits",
        ) from error
    if strange:
        raise DataError(
            f"it holds the split {min(strange)!r}",
            where=str(path),
            remedy=f"use {', '.join(THREE)}, or remove it to draw new splits",
        )
    wanted = {(site, entry.case) for site, entries in open_sites.items() for entry in entries}
    if listed != wanted:
        raise DataError(
            f"it does not fit the list: {len(wanted - listed)} cases of the list are not in it, "
            f"{len(listed - wanted)} of its cases are not in the list",
            where=str(path),
            remedy="remove it to draw new splits, or add the new cases to it",
        )
    if drawn_by != list(shares):
        raise DataError(
            f"its splits were drawn with shares {drawn_by}, and task.shares is {list(shares)}",
            where=str(path),
            remedy="remove it to draw new splits, or restore task.shares",
        )
    return kept


def _refuse_small(listing: Listing, sites: Mapping[str, Sequence[ListedCase]]) -> None:
    counts = {site: len({entry.patient for entry in entries}) for site, entries in sites.items()}
    small = [f"{site} has {n} patient{'s' * (n != 1)}" for site, n in counts.items() if n < 3]
    if small:
        raise DataError(
            f"{', '.join(small)}, and three splits need at least three",
            where=str(listing.path),
            remedy="leave such a site out, or merge it with another",
        )


def _draw(
    site: str, entries: Sequence[ListedCase], shares: Sequence[float], seed: int
) -> dict[str, str]:
    patients = sorted({entry.patient for entry in entries})
    order = Seeds(seed).numpy(site, Purpose.SPLIT).permutation(len(patients))
    total = sum(shares)
    sizes = [max(1, round(len(patients) * share / total)) for share in shares[1:]]
    while sum(sizes) >= len(patients):
        sizes[sizes.index(max(sizes))] -= 1
    roles = ["validation"] * sizes[0] + ["test"] * sizes[1]
    roles += ["train"] * (len(patients) - len(roles))
    role = {patients[index]: roles[place] for place, index in enumerate(order)}
    return {entry.case: role[entry.patient] for entry in entries}


def _refuse_shared_patients(listing: Listing, found: Split) -> None:
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    wrong = []
    for entry in listing.entries:
        split = found[entry.site][entry.case]
        case, before = seen.setdefault((entry.site, entry.patient), (entry.case, split))
        if before != split:
            wrong.append(
                f"patient {entry.patient} of {entry.site}: {case} is in {before}, "
                f"{entry.case} in {split}"
            )
    if wrong:
        raise DataError(
            "a patient is in two splits, so test data would leak:\n  " + "\n  ".join(wrong),
            where=str(listing.path),
            remedy="keep all cases of a patient in one split",
        )


def _set_aside(listing: Listing, found: Split, holdout: float, seed: int) -> Split:
    """Moves a share of each site's training patients to the holdout split."""
    moved = {}
    for site, entries in listing.sites().items():
        cases = dict(found[site])
        training = sorted({e.patient for e in entries if cases[e.case] == "train"})
        count = max(1, round(len(training) * holdout))
        if count >= len(training):
            raise DataError(
                f"it has {len(training)} training patients, and the holdout would take {count}",
                where=f"site {site}",
                remedy="lower task.holdout",
            )
        draw = Seeds(seed).numpy(site, Purpose.SPLIT, 1).permutation(len(training))[:count]
        aside = {training[index] for index in draw}
        for entry in entries:
            if entry.patient in aside:
                cases[entry.case] = "holdout"
        moved[site] = cases
    return moved
