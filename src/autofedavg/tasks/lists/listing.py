"""Data lists: a CSV table, or JSON as MONAI and the Medical Segmentation Decathlon write it.

One entry is one case: `site`, `image` (one file, or several that are its channels), `label`, and if
you like `split`, `case`, `patient`, `fold`. Everything wrong with a list is told at once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.files import stem
from autofedavg.tasks.lists.listrows import (
    SPLIT_NAMES,
    WRONG,
    classes_of,
    csv_rows,
    json_rows,
    parsed,
)

MOST = 20  # problems told in full


@dataclass(frozen=True)
class ListedCase:
    """One line of a data list."""

    site: str
    case: str
    image: tuple[Path, ...]
    label: Path
    split: str = ""
    patient: str = ""
    fold: int | None = None


@dataclass(frozen=True)
class Listing:
    """A data list.

    Attributes:
        path: its file.
        root: the folder its paths begin at.
        entries: its cases in the order of the file.
        classes: class name -> values in the label files, where the list says so.
        unlabelled: entries without a label, left out.
    """

    path: Path
    root: Path
    entries: tuple[ListedCase, ...]
    classes: Mapping[str, tuple[int, ...]]
    unlabelled: int = 0

    def sites(self) -> dict[str, list[ListedCase]]:
        """Entries by site, by name."""
        found: dict[str, list[ListedCase]] = {}
        for entry in self.entries:
            found.setdefault(entry.site, []).append(entry)
        return dict(sorted(found.items()))


def read_listing(path: Path, root: Path, *, allow_outside: bool = False) -> Listing:
    """Reads a data list; the files it names are not opened.

    Args:
        path: the list, .csv or .json.
        root: the folder its paths begin at.
        allow_outside: whether paths may lead out of the root.

    Raises:
        DataError: tells everything that is wrong with the list.
    """
    if not path.is_file():
        raise DataError(
            "no such data list", where=str(path), remedy="set task.datalist to a .csv or .json file"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot be read as text ({error})", where=str(path), remedy="save it as UTF-8"
        ) from error
    classes: dict[str, tuple[int, ...]] = {}
    if path.suffix.lower() == ".json":
        content = parsed(text, path)
        rows, classes = json_rows(content, path), classes_of(content, path)
    else:
        rows = csv_rows(text, path)
    wrong: list[str] = []
    entries: list[ListedCase] = []
    unlabelled = 0
    for place, row in rows:
        if not row.get("label") and WRONG not in row:
            unlabelled += 1
            continue
        try:
            entries.append(_entry(row, root, allow_outside))
        except ValueError as error:
            wrong.append(f"{place}: {error}")
    entries = _with_names(entries, root)
    wrong += _doubles(entries)
    if not entries and not wrong:
        wrong.append("there is no case with a label in it")
    if wrong:
        more = [f"and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
        raise DataError(
            f"{len(wrong)} mistake{'s' * (len(wrong) > 1)}:\n  " + "\n  ".join(wrong[:MOST] + more),
            where=str(path),
            remedy="mend the list; docs/how-to/own-data.md shows one",
        )
    return Listing(path, root, tuple(entries), classes, unlabelled)


def _entry(row: Mapping[str, Any], root: Path, allow_outside: bool) -> ListedCase:
    if WRONG in row:
        raise ValueError(row[WRONG])
    site, images, label = str(row.get("site", "")).strip(), row["image"], row["label"]
    if not site:
        raise ValueError("there is no site")
    if not isinstance(images, list) or not images or not all(isinstance(i, str) for i in images):
        raise ValueError("there is no image")
    if not isinstance(label, str):
        raise ValueError(f"label is {label!r}, not the name of a file")
    paths = tuple(_within(image, root, allow_outside) for image in images)
    split = str(row.get("split", "")).strip().lower()
    if split and split not in SPLIT_NAMES:
        raise ValueError(f"split {split!r} is none of train, validation, test")
    fold = row.get("fold", "")
    if fold != "" and not str(fold).isdecimal():
        raise ValueError(f"fold {fold!r} is not a number from 0")
    return ListedCase(
        site,
        str(row.get("case", "")).strip(),
        paths,
        _within(label, root, allow_outside),
        SPLIT_NAMES.get(split, ""),
        str(row.get("patient", "")).strip(),
        None if fold == "" else int(fold),
    )


def _within(text: str, root: Path, allow_outside: bool) -> Path:
    # As written, not as links lead: a link inside the root is its owner's decision.
    path = Path(os.path.normpath(root / text))
    if not allow_outside and not path.is_relative_to(os.path.normpath(root)):
        raise ValueError(
            f"{text} leads out of {root}; set task.allow_outside = true if that is meant"
        )
    return path


def _with_names(entries: list[ListedCase], root: Path) -> list[ListedCase]:
    """Cases without a name are called after their file, or its path where names repeat."""
    short = [stem(entry.image[0]) for entry in entries]
    taken = Counter((e.site, e.case or name) for e, name in zip(entries, short, strict=True))
    named = []
    for entry, name in zip(entries, short, strict=True):
        case = entry.case or name
        if not entry.case and taken[entry.site, name] > 1:
            first = Path(os.path.relpath(entry.image[0], root))
            case = (first.parent / name).as_posix()
        named.append(replace(entry, case=case, patient=entry.patient or case))
    return named


def _doubles(entries: list[ListedCase]) -> list[str]:
    """Cases and files that occur twice."""
    wrong = []
    cases: set[tuple[str, str]] = set()
    files: dict[Path, str] = {}
    for entry in entries:
        here = f"{entry.site}/{entry.case}"
        if (entry.site, entry.case) in cases:
            wrong.append(f"{here} is listed twice")
        cases.add((entry.site, entry.case))
        for path in (*entry.image, entry.label):
            before = files.setdefault(path, here)
            if before != here:
                wrong.append(f"{path.name} belongs to {before} and to {here}")
            elif entry.image.count(path) > 1 or entry.label in entry.image:
                wrong.append(f"{here} names {path.name} twice")
                break
    return wrong
