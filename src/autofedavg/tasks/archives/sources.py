"""Public data sets: their origin and terms, and the files of their cases on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.dicom import series_header
from autofedavg.tasks.imaging.preparation import Classes
from autofedavg.tasks.imaging.readers import nifti_header


@dataclass
class FoundFiles:
    """The files found of one case; more than one image or label is an error."""

    images: list[Path] = field(default_factory=list)
    labels: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class DataSource:
    """A public data set as it is downloaded.

    Attributes:
        title: its name.
        get: where to download it, and its size.
        licence: its terms of use.
        cite: the publications to cite.
        folder: its folder below the task's root; empty for the root itself.
        case: a case's id, with {} for its number.
        image: the end of an image's path, with {}; of a folder where `series` is true.
        label: the end of a label's path, with {}.
        number: the form of a number, as a regular expression.
        classes: the meaning of the label's values.
        series: whether images are folders of DICOM files.
        by_rows: whether labels follow their image's rows and slices; their affine is ignored.
        aliases: other ids for a case -> the id of the split file.
    """

    title: str
    get: str
    licence: str
    cite: tuple[str, ...]
    folder: str
    case: str
    image: str
    label: str
    number: str
    classes: Classes
    series: bool = False
    by_rows: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    def find(self, root: Path) -> dict[str, FoundFiles]:
        """Every case with an image or a label in any folder below the root."""
        top = root / self.folder
        found: dict[str, FoundFiles] = {}
        for path in _below(top, self._ends(self.image) if self.series else None):
            tail = path.relative_to(top).as_posix()
            for ends, role in ((self.image, "images"), (self.label, "labels")):
                match = self._ends(ends).fullmatch(tail)
                if match:
                    case = self.case.format(match[1])
                    pair = found.setdefault(self.aliases.get(case, case), FoundFiles())
                    getattr(pair, role).append(path)
        return found

    def lacking(self, case: str, pair: FoundFiles) -> list[str]:
        """The reasons why a case cannot be used, judging by the names of its files."""
        wrong = []
        for role, ends, paths in (
            ("image", self.image, pair.images),
            ("label", self.label, pair.labels),
        ):
            if not paths:
                wrong.append(f"no {role} {self.named(ends, case)}")
            elif len(paths) > 1:
                wrong.append(f"{len(paths)} {role}s: " + ", ".join(map(str, sorted(paths))))
        return wrong

    def named(self, ends: str, case: str) -> str:
        """The path of a case's file in its data set."""
        before, _, after = self.case.partition("{}")
        return ends.format(case.removeprefix(before).removesuffix(after))

    def _ends(self, template: str) -> re.Pattern[str]:
        number = re.escape(template).replace(r"\{\}", f"({self.number})")
        return re.compile("(?:.*/)?" + number.replace(r"\.nii\.gz", r"\.nii(?:\.gz)?"))


def grid_of(path: Path) -> tuple[int, ...]:
    """The size of an image by its header; raises DataError if that cannot be read."""
    try:
        return series_header(path).grid if path.is_dir() else nifti_header(path).grid
    except DataError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise DataError(
            f"its header cannot be read ({reason.strip()})",
            where=str(path),
            remedy="download it again",
        ) from error


def _below(top: Path, whole: re.Pattern[str] | None = None) -> Iterator[Path]:
    """The files below a folder; a folder that matches `whole` counts as one, unless empty.

    Follows links to folders, visits each folder once, and skips hidden names.
    """
    seen: set[str] = set()
    for place, folders, names in os.walk(top, followlinks=True):
        here = Path(place)
        real = os.path.realpath(place)
        folders[:] = sorted(name for name in folders if name[:1] != "." and real not in seen)
        if real in seen:
            continue
        seen.add(real)
        for name in list(folders) if whole else ():
            if whole and whole.fullmatch((here / name).relative_to(top).as_posix()):
                folders.remove(name)
                if next(_below(here / name), None):
                    yield here / name
        yield from (here / name for name in sorted(names) if name[:1] != ".")
