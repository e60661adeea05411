"""Data lists: a CSV table, or JSON as MONAI and the Medical Segmentation Decathlon write it.

One entry is one case: `site`, `image` (one file, or several that are its channels), `label`, and
optionally `split`, `case`, `patient`, `fold`. An error lists every mistake in a list.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autofedavg.core.errors import DataError, did_you_mean
from autofedavg.tasks.imaging.files import stem
from autofedavg.tasks.imaging.preparation import Case
from autofedavg.tasks.lists.label_classes import classes_of

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
WRONG = " wrong"  # key of the error in a row; no column can have this name
MOST = 20  # mistakes listed in full


@dataclass(frozen=True)
class ListedCase:
    """One case of a data list."""

    site: str
    case: str
    image: tuple[Path, ...]
    label: Path
    split: str = ""
    patient: str = ""
    fold: int | None = None

    def as_case(self, split: str = "") -> Case:
        """The same files as a case of a split."""
        return Case(self.case, split, self.image, self.label, self.patient)


@dataclass(frozen=True)
class Listing:
    """A data list."""

    path: Path  # its file
    root: Path  # the folder that its paths are relative to
    entries: tuple[ListedCase, ...]  # its cases in the order of the file
    # Class name -> values in the label files, if the list defines them.
    classes: Mapping[str, tuple[int, ...]]
    unlabelled: int = 0  # number of entries without a label, which are left out

    def sites(self) -> dict[str, list[ListedCase]]:
        """Entries by site, by name."""
        found: dict[str, list[ListedCase]] = {}
        for entry in self.entries:
            found.setdefault(entry.site, []).append(entry)
        return dict(sorted(found.items()))


def read_listing(path: Path, root: Path, *, allow_outside: bool = False) -> Listing:
    """Reads a data list, .csv or .json, without opening the files it names.

    Paths are relative to `root` and may only lead out of it with `allow_outside`. Raises a
    DataError that lists every mistake.
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
        wrong.append("there is no case with a label")
    if wrong:
        more = [f"and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
        raise DataError(
            f"{len(wrong)} mistake{'s' * (len(wrong) > 1)}:\n  " + "\n  ".join(wrong[:MOST] + more),
            where=str(path),
            remedy="correct the list; docs/how-to/own-data.md shows one",
        )
    return Listing(path, root, tuple(entries), classes, unlabelled)


def csv_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, cells) of every line of a table that is not empty."""
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [(name or "").strip().lower() for name in reader.fieldnames or []]
        _check_columns(names, path)
        reader.fieldnames = names
        for row in reader:
            if not any(row.values()):
                continue
            long = row.pop(None, None)
            cells: dict[str, Any] = {key: (value or "").strip() for key, value in row.items()}
            cells["image"] = [part.strip() for part in cells["image"].split("|") if part.strip()]
            if long is not None:
                cells[WRONG] = "there are more cells than columns"
            yield f"line {reader.line_num}", cells
    except csv.Error as error:
        raise DataError(
            f"not a table: {error}",
            where=f"{path}, line {reader.reader.line_num}",
            remedy="check quotes and line ends there",
        ) from error


def _check_columns(names: list[str], path: Path) -> None:
    wrong = [f"there is no column {name!r}" for name in NEEDED if name not in names]
    for name in dict.fromkeys(names):
        if name not in COLUMNS:
            wrong.append(f"column {name!r} is unknown, {did_you_mean(name, COLUMNS)}")
        elif names.count(name) > 1:
            wrong.append(f"there are two columns {name!r}")
    if wrong:
        raise DataError(
            "; ".join(wrong),
            where=str(path),
            remedy=f"the first line names the columns: {', '.join(COLUMNS)}",
        )


def parsed(text: str, path: Path) -> dict[str, Any]:
    """The content of a JSON data list."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not JSON: {error}", where=str(path), remedy="correct it, or write a .csv"
        ) from error
    if not isinstance(content, dict):
        raise DataError(
            "a JSON data list is an object",
            where=str(path),
            remedy='write {"training": [{"site": ..., "image": ..., "label": ...}]}',
        )
    return content


def json_rows(content: dict[str, Any], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, values) of every case of a JSON data list."""
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
            raise DataError(
                f"{key!r} is not a list",
                where=str(path),
                remedy='write "training": [{"site": ..., "image": ..., "label": ...}]',
            )
        for number, item in enumerate(content[key], 1):
            row = _json_row(item)
            if len(labelled) > 1:
                row.setdefault("split", sections[key] or "train")
            yield f"{key} {number}", row


def _json_row(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        item = {"image": item}
    if not isinstance(item, dict):
        return {WRONG: "a case is an object"}
    item = {str(name).lower(): value for name, value in item.items()}
    row = {name: item[name] for name in COLUMNS if item.get(name) not in (None, "")}
    image = row.get("image", [])
    row["image"] = [image] if isinstance(image, str) else image
    for name in item.keys() - set(COLUMNS):
        # MONAI's lists may have more keys than are used here; a typo must not pass for one.
        near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.8)
        if near and near[0] not in item:
            row[WRONG] = f"{name!r} is unknown, did you mean {near[0]}?"
    return row


def _has_labels(section: Any) -> bool:
    return isinstance(section, list) and any(
        isinstance(item, dict) and item.get("label") for item in section
    )


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
    # Links are not resolved: a link inside the root is its owner's decision.
    path = Path(os.path.normpath(root / text))
    if not allow_outside and not path.is_relative_to(os.path.normpath(root)):
        raise ValueError(
            f"{text} leads out of {root}; set task.allow_outside = true if that is intended"
        )
    return path


def _with_names(entries: list[ListedCase], root: Path) -> list[ListedCase]:
    """Names unnamed cases after their file, or after its path where names repeat."""
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
    counts = Counter((entry.site, entry.case) for entry in entries)
    wrong = [f"{'/'.join(case)} is listed twice" for case, count in counts.items() if count > 1]
    files: dict[Path, str] = {}
    for entry in entries:
        here = f"{entry.site}/{entry.case}"
        for path in (*entry.image, entry.label):
            before = files.setdefault(path, here)
            if before != here:
                wrong.append(f"{path.name} belongs to {before} and to {here}")
            elif entry.image.count(path) > 1 or entry.label in entry.image:
                wrong.append(f"{here} names {path.name} twice")
                break
    return wrong
