"""The rows of a data list as they are written: a CSV table, or JSON in MONAI's layout."""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autofedavg.core.errors import DataError, did_you_mean

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
WRONG = " wrong"  # what a reader could not make a row of; no column can be called that


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
            remedy="look at quotes and line ends there",
        ) from error


def _check_columns(names: list[str], path: Path) -> None:
    wrong = [f"there is no column {name!r}" for name in NEEDED if name not in names]
    for name in dict.fromkeys(names):
        if name not in COLUMNS:
            wrong.append(f"column {name!r} is not known, {did_you_mean(name, COLUMNS)}")
        elif names.count(name) > 1:
            wrong.append(f"there are two columns {name!r}")
    if wrong:
        raise DataError(
            "; ".join(wrong),
            where=str(path),
            remedy=f"the first line names the columns: {', '.join(COLUMNS)}",
        )


def parsed(text: str, path: Path) -> dict[str, Any]:
    """The object that a JSON data list is."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not JSON: {error}", where=str(path), remedy="mend it, or write a .csv"
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
        # MONAI's lists may say more than is needed here; a slip of the pen must not pass for that.
        near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.8)
        if near and near[0] not in item:
            row[WRONG] = f"{name!r} is not known, did you mean {near[0]}?"
    return row


def _has_labels(section: Any) -> bool:
    return isinstance(section, list) and any(
        isinstance(item, dict) and item.get("label") for item in section
    )


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
            remedy="give every value one class; classes that overlap cannot be learned here",
        )
    ordered = sorted(found.items(), key=lambda item: item[1])
    return {name: tuple(values) for name, values in ordered}
