"""Image files as arrays: NIfTI, DICOM series, NRRD, MetaImage, PNG, JPEG, TIFF.

No reader runs code from a file: they parse pixels and headers only, and refuse a file whose content
does not match its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.dicom import read_series, series_header
from autofedavg.tasks.imaging.readers import DICOM, FLAT, ITK, NIFTI, Scan, blank, plain, read_file

ROUNDING = 0.05  # of a voxel: grids that differ by less are the same
WHOLE = 1e-3  # tolerance for the whole numbers of a label: files may store them scaled
NUMBERS = "save one number per voxel: 0 for background, 1, 2, ... for the classes"


def read(paths: Sequence[Path]) -> Scan:
    """Reads one image; several files are its channels and must share a grid (to 5 % of a voxel)."""
    scans = _channels(paths, pixels=True)
    if len(scans) == 1:
        return scans[0]
    return replace(scans[0], values=np.concatenate([scan.values for scan in scans]))


def look(paths: Sequence[Path]) -> Scan:
    """The header of one image: its values have the right shape, but are not read."""
    scans = _channels(paths, pixels=False)
    channels = sum(len(scan.values) for scan in scans)
    return replace(scans[0], values=blank((channels, *scans[0].grid)))


def _channels(paths: Sequence[Path], *, pixels: bool) -> list[Scan]:
    """The files of one image, which must share a grid."""
    first, *others = scans = [_read_one(path, pixels=pixels) for path in paths]
    for path, other in zip(paths[1:], others, strict=True):
        if other.grid != first.grid or offset(first.affine, other.affine, first.grid) > ROUNDING:
            raise DataError(
                f"its grid differs from that of {paths[0].name}",
                where=str(path),
                remedy="resample the channels of a case to one grid",
            )
    return scans


def stem(path: Path) -> str:
    """The name of a file without the suffix of its format: the name of its case."""
    name = path.name
    for ending in sorted((*NIFTI, *ITK, *FLAT, *DICOM), key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def read_label(path: Path) -> Scan:
    """Reads a label: one channel of whole numbers from 0."""
    if path.name.lower().endswith((".jpg", ".jpeg")):
        raise DataError(
            "a JPEG cannot be a label: its compression changes values",
            where=str(path),
            remedy="save labels as PNG, TIFF or NIfTI",
        )
    scan = _read_one(path, colours=False)
    values = scan.values
    if len(values) > 1 and (values == values[:1]).all():  # grey written as three equal colours
        values = values[:1]
    if len(values) > 1:
        raise DataError(
            f"a label has one channel, this file {len(values)}", where=str(path), remedy=NUMBERS
        )
    if values.dtype.kind == "f":
        whole = np.round(values)
        if not np.isfinite(values).all() or (np.abs(values - whole) > WHOLE).any():
            raise DataError("a label holds whole numbers only", where=str(path), remedy=NUMBERS)
        values = whole.astype(np.int64)
    if values.size and values.min() < 0:
        raise DataError(
            f"it holds {values.min()}, and labels are numbers from 0",
            where=str(path),
            remedy="write 0 for background and for regions to leave out",
        )
    return replace(scan, values=values)


def offset(one: np.ndarray | None, two: np.ndarray | None, grid: Sequence[int]) -> float:
    """The largest distance between corners of two grids, in voxels (of the smallest spacing)."""
    if one is None or two is None:
        return 0.0
    ends = [(0, n - 1) for n in grid]
    corners = np.stack([c.ravel() for c in np.meshgrid(*ends, indexing="ij")] + [np.ones(8)])
    apart = np.linalg.norm(((one - two) @ corners)[:3], axis=0).max()
    smallest = float(np.sqrt((one[:3, :3] ** 2).sum(axis=0)).min())
    return float(apart / smallest) if smallest else float("inf")


def identity(path: Path) -> list[tuple[str, int, int]]:
    """(name, bytes, time of change) of every file that an image is read from."""
    with _readable(path):
        found = []
        for file in _files(path):
            seen = file.stat()
            found.append((str(file.relative_to(path.parent)), seen.st_size, seen.st_mtime_ns))
        return found


def digest(values: np.ndarray) -> str:
    """SHA-256 of an array's size and numbers: equal for copies in any file format."""
    plain = np.ascontiguousarray(values, dtype=np.float32)
    total = hashlib.sha256(str(plain.shape).encode())
    total.update(plain.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _files(path: Path) -> list[Path]:
    """The files behind a path: all of a folder or series, and of a header also its data."""
    if not path.exists():
        raise DataError("no such file", where=str(path), remedy="correct the path, or add the file")
    name = path.name.lower()
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file() and p.name[:1] != ".")
    if name.endswith(DICOM):
        return sorted(p for p in path.parent.iterdir() if p.is_file() and p.name[:1] != ".")
    if name.endswith((".mhd", ".nhdr", ".nrrd")):
        return [path, *_named_in(path)]
    return [path]


def _named_in(header: Path) -> list[Path]:
    """The data files that a header names; raises DataError if one is in another folder."""
    found = []
    for line in _head(header):
        text = line.replace("=", ":").rpartition(":")[2].strip()
        key = line.replace("=", ":").partition(":")[0].strip().lower()
        if key in ("elementdatafile", "data file", "datafile") and (" " in text or text == "LIST"):
            raise DataError(
                f"its data is spread over files: {text}",
                where=str(header),
                remedy="save the image as one file",
            )
        if not 0 < len(text) < 200 or "\0" in text or text == header.name:
            continue
        if (text.startswith("/") or ".." in Path(text).parts) and (header.parent / text).exists():
            raise DataError(
                f"its data lies elsewhere: {text}",
                where=str(header),
                remedy="keep header and data in one folder",
            )
        if (header.parent / text).is_file():
            found.append(header.parent / text)
    return found


def _head(header: Path) -> list[str]:
    """The lines of a header; if the file also holds the data, those before the empty line."""
    with header.open("rb") as stream:
        start = stream.read(2**16).partition(b"\n\n")[0]
    return start.decode("utf-8", errors="surrogateescape").splitlines()


def _read_one(path: Path, *, pixels: bool = True, colours: bool = True) -> Scan:
    with _readable(path):
        _files(path)
        if path.is_dir() or path.name.lower().endswith(DICOM):
            scan = read_series(path) if pixels else series_header(path)
        else:
            scan = read_file(path, pixels=pixels, colours=colours)
        _refuse_nowhere(path, scan.affine)
        return replace(scan, values=plain(scan.values)) if pixels else scan


def _refuse_nowhere(path: Path, affine: np.ndarray | None) -> None:
    if affine is not None and not (
        np.isfinite(affine).all() and abs(float(np.linalg.det(affine[:3, :3]))) > 1e-12
    ):
        raise DataError(
            "its affine does not place voxels in space (numbers missing, or a size of 0)",
            where=str(path),
            remedy="write a valid affine into the file",
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns any failure of a reader into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        pickled = "it is a pickle, not an image; " if _is_pickle(path) else ""
        raise DataError(
            f"cannot be read ({pickled}{reason.strip()})",
            where=str(path),
            remedy="replace it by a complete file of the format in its name",
        ) from error


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            start = stream.read(2)
    except OSError:
        return False
    return len(start) == 2 and start[0] == 0x80 and start[1] <= 5
