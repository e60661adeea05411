"""Data lists: a CSV table, or JSON as MONAI and the Medical Segmentation Decathlon write it.

One entry is one case: `site`, `image` (one file, or several that are its channels), `label`, and if
you like `split`, `case`, `patient`, `fold`. Everything wrong with a list is told at once.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.errors import DataError, did_you_mean
from autofedavg.tasks.files import DICOM, FLAT, ITK, NIFTI

COLUMNS = ("site", "image", "label", "split", "case", "patient", "fold")
NEEDED = ("site", "image", "label")
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "validation": "validation", "val": "validation", "valid": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
SECTIONS = {"training": "", "train": "train"} | {
    key: value for key, value in SPLIT_NAMES.items() if value != "train"
}
MOST = 20  # problems told in full


@dataclass(frozen=True)
class Entry:
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
    entries: tuple[Entry, ...]
    classes: Mapping[str, tuple[int, ...]]
    unlabelled: int = 0

    def sites(self) -> dict[str, list[Entry]]:
        """Entries by site, by name."""
        found: dict[str, list[Entry]] = {}
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
            "no such data list", where=str(path), remedy="set task.list to a .csv or .json file"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read as UTF-8 text ({error})", where=str(path)) from error
    if path.suffix.lower() == ".json":
        rows, classes = _json_rows(text, path), _json_classes(text)
    else:
        rows, classes = _csv_rows(text, path), {}
    wrong: list[str] = []
    entries: list[Entry] = []
    unlabelled = 0
    for place, row in rows:
        if not row.get("label"):
            unlabelled += 1
            continue
        try:
            entries.append(_entry(row, root, allow_outside))
        except ValueError as error:
            wrong.append(f"{place}: {error}")
    wrong += _doubles(entries)
    if not entries and not wrong:
        wrong.append("there is no case with a label in it")
    if wrong:
        more = [f"and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
        raise DataError(
            f"{len(wrong)} mistakes:\n  " + "\n  ".join(wrong[:MOST] + more),
            where=str(path),
            remedy="mend the list; docs/how-to/own-data.md shows one",
        )
    return Listing(path, root, tuple(entries), classes, unlabelled)


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter, strict=True)
    names = [(name or "").strip().lower() for name in reader.fieldnames or []]
    for needed in NEEDED:
        if needed not in names:
            raise DataError(
                f"there is no column {needed!r} in {names}",
                where=str(path),
                remedy=f"the first line names the columns: {', '.join(COLUMNS)}",
            )
    for name in names:
        if name not in COLUMNS:
            raise DataError(
                f"column {name!r} is not known",
                where=str(path),
                remedy=did_you_mean(name, COLUMNS),
            )
    reader.fieldnames = names
    try:
        for row in reader:
            if None in row:
                raise DataError("more cells than columns", where=f"{path}, line {reader.line_num}")
            cells: dict[str, Any] = {key: (value or "").strip() for key, value in row.items()}
            cells["image"] = [part.strip() for part in cells["image"].split("|") if part.strip()]
            yield f"line {reader.line_num}", cells
    except csv.Error as error:
        raise DataError(f"not a table: {error}", where=f"{path}, line {reader.line_num}") from error


def _parsed(text: str, path: Path | None = None) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(content, dict):
        raise DataError(
            "a JSON data list is an object",
            where=str(path),
            remedy='write {"training": [{"site": ..., "image": ..., "label": ...}]}',
        )
    return content


def _json_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    content = _parsed(text, path)
    sections = {key: split for key, split in SECTIONS.items() if key in content}
    if not sections:
        raise DataError(
            f"there is no section of cases in {sorted(content)}",
            where=str(path),
            remedy=f"name one of {', '.join(SECTIONS)}",
        )
    # With sections for more than training, the sections are the splits.
    labelled = [key for key in sections if _has_labels(content[key])]
    for key in sections:
        if not isinstance(content[key], list):
            raise DataError(f"{key!r} is not a list", where=str(path))
        for number, item in enumerate(content[key], 1):
            place = f"{key} {number}"
            if isinstance(item, str):
                item = {"image": item}
            if not isinstance(item, dict):
                raise DataError("a case is an object", where=f"{path}: {place}")
            row = {name: item[name] for name in COLUMNS if item.get(name) not in (None, "")}
            image = row.get("image", [])
            row["image"] = [image] if isinstance(image, str) else image
            if len(labelled) > 1:
                row.setdefault("split", sections[key] or "train")
            yield place, row


def _has_labels(section: Any) -> bool:
    return isinstance(section, list) and any(
        isinstance(item, dict) and item.get("label") for item in section
    )


def _json_classes(text: str) -> dict[str, tuple[int, ...]]:
    """The Decathlon's {"1": "liver"}, or MONAI's {"liver": 1}; background is left out."""
    labels = _parsed(text).get("labels", {})
    found: dict[str, tuple[int, ...]] = {}
    if isinstance(labels, dict):
        for key, value in labels.items():
            name, number = (value, key) if str(key).isdigit() else (key, value)
            if str(number).isdigit() and int(number):
                found[str(name)] = (int(number),)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _entry(row: Mapping[str, Any], root: Path, allow_outside: bool) -> Entry:
    site, images = str(row.get("site", "")).strip(), row["image"]
    if not site:
        raise ValueError("there is no site")
    if not isinstance(images, list) or not images or not all(isinstance(i, str) for i in images):
        raise ValueError("there is no image")
    paths = tuple(_within(image, root, allow_outside) for image in images)
    split = str(row.get("split", "")).strip().lower()
    if split and split not in SPLIT_NAMES:
        raise ValueError(f"split {split!r} is none of train, validation, test")
    fold = row.get("fold", "")
    if fold != "" and not str(fold).isdigit():
        raise ValueError(f"fold {fold!r} is not a number from 0")
    case = str(row.get("case", "")).strip() or _named(paths[0])
    return Entry(
        site,
        case,
        paths,
        _within(str(row["label"]), root, allow_outside),
        SPLIT_NAMES.get(split, ""),
        str(row.get("patient", "")).strip() or case,
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


def _named(path: Path) -> str:
    """A case's name from its file: the name without what says the kind of file."""
    name = path.name
    for ending in sorted((*NIFTI, *ITK, *FLAT, *DICOM), key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _doubles(entries: list[Entry]) -> list[str]:
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
