"""Image files as arrays: NIfTI, DICOM series, NRRD, MetaImage, PNG, JPEG, TIFF.

Nothing here runs code from a file: the readers parse pixels and headers only, and a file whose
content is not what its name says is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from autofedavg.errors import DataError

NIFTI = (".nii", ".nii.gz")
ITK = (".nrrd", ".nhdr", ".mha", ".mhd")
FLAT = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
DICOM = (".dcm", ".dicom", ".ima")
ROUNDING = 0.05  # of a voxel: what grids may differ by and still be the same
_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True)
class Scan:
    """The content of an image file.

    Attributes:
        values: (C, *grid), two or three spatial axes; float32, or an integer type.
        affine: (4, 4) from voxel to mm in RAS, or None where the file does not say.
    """

    values: np.ndarray
    affine: np.ndarray | None

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.values.shape[1:])

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Voxel size in mm along each axis, where it is known."""
        if self.affine is None:
            return None
        return tuple(float(v) for v in np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)))


def read(paths: Sequence[Path]) -> Scan:
    """Reads one image; several files are its channels and must share a grid (to 5 % of a voxel).

    Raises:
        DataError: a file is missing, unreadable, of unknown kind, or unlike the others.
    """
    scans = [_read_one(path) for path in paths]
    first = scans[0]
    for path, scan in zip(paths[1:], scans[1:], strict=True):
        if scan.grid != first.grid or offset(first.affine, scan.affine, scan.grid) > ROUNDING:
            raise DataError(f"its grid is not that of {paths[0].name}", where=str(path))
    if len(scans) == 1:
        return first
    return Scan(np.concatenate([scan.values for scan in scans]), first.affine)


def read_label(path: Path) -> Scan:
    """Reads a label: one channel of whole numbers.

    Raises:
        DataError: as `read`, or the file holds no label.
    """
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
        raise DataError(f"a label has one channel, this file {len(values)}", where=str(path))
    if values.dtype.kind == "f":
        if not np.isfinite(values).all() or (values != np.round(values)).any():
            raise DataError("a label holds whole numbers only", where=str(path))
        values = values.astype(np.int64)
    return Scan(values, scan.affine)


def offset(one: np.ndarray | None, two: np.ndarray | None, grid: Sequence[int]) -> float:
    """How far apart two grids lie at their worst corner, in voxels (of the smallest spacing)."""
    if one is None or two is None:
        return 0.0
    ends = [(0, n - 1) for n in grid]
    corners = np.stack([c.ravel() for c in np.meshgrid(*ends, indexing="ij")] + [np.ones(8)])
    apart = np.linalg.norm(((one - two) @ corners)[:3], axis=0).max()
    smallest = float(np.sqrt((one[:3, :3] ** 2).sum(axis=0)).min())
    return float(apart / smallest) if smallest else float("inf")


def identity(path: Path) -> list[tuple[str, int, int]]:
    """(name, bytes, time of change) of a file, or of every file of a series: its quick identity."""
    return [
        (str(file.relative_to(path.parent)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in _files(path)
    ]


def digest(paths: Sequence[Path]) -> str:
    """SHA-256 over the bytes of files and series."""
    total = hashlib.sha256()
    for path in paths:
        for file in _files(path):
            with file.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError("no such file", where=str(path))
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def _read_one(path: Path, *, colours: bool = True) -> Scan:
    if not path.exists():
        raise DataError("no such file", where=str(path))
    reader = _reader(path, colours)
    with _readable(path):
        return reader(path)


def _reader(path: Path, colours: bool) -> Callable[[Path], Scan]:
    name = path.name.lower()
    if path.is_dir() or name.endswith(DICOM):
        return _read_series
    if name.endswith(FLAT):
        return partial(_read_flat, colours=colours)
    for endings, reader in ((NIFTI, _read_nifti), (ITK, _read_itk)):
        if name.endswith(endings):
            return reader
    raise DataError(
        f"files called *{path.suffix or path.name} are not read",
        where=str(path),
        remedy=f"use a folder of DICOM files, or one of {' '.join((*NIFTI, *ITK, *FLAT))}",
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Any failure of a reader as a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        said = "it is a pickle, whatever its name; " if _is_pickle(path) else ""
        raise DataError(
            f"cannot be read ({said}{reason.strip()})",
            where=str(path),
            remedy="replace it by a whole file of the kind its name says",
        ) from error


def _is_pickle(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(2)
    return len(start) == 2 and start[0] == 0x80 and start[1] <= 5


def _read_nifti(path: Path) -> Scan:
    import nibabel as nib

    image = nib.load(path)
    values = np.asanyarray(image.dataobj)
    if values.ndim > 3:  # channels come last; a fifth axis holds vectors
        values = values.reshape(*values.shape[:3], -1)
    else:
        values = values.reshape(*values.shape, *(1,) * (4 - values.ndim))
    values = _plain(np.moveaxis(values, -1, 0))
    if values.shape[-1] == 1:
        return Scan(values[..., 0], None)
    affine = np.asarray(image.affine, dtype=np.float64)
    # Many tools leave the unit out, so it alone means nothing; with no affine either, nothing is
    # known of the space.
    coded = int(image.header["qform_code"]) or int(image.header["sform_code"])
    told = coded and not np.array_equal(affine, np.eye(4))
    known = told or image.header.get_xyzt_units()[0] != "unknown"
    return Scan(values, affine if known else None)


def _read_itk(path: Path) -> Scan:
    import SimpleITK

    return _from_itk(SimpleITK.ReadImage(str(path)))


def _read_series(path: Path) -> Scan:
    import SimpleITK

    folder = path if path.is_dir() else path.parent
    found = {f.parent for f in folder.rglob("*") if f.is_file() and f.name[:1] != "."}
    series = {
        uid: names
        for place in sorted(found)
        for uid in SimpleITK.ImageSeriesReader.GetGDCMSeriesIDs(str(place))
        for names in [SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames(str(place), uid)]
        if path.is_dir() or str(path) in names
    }
    if not series:
        raise DataError("there is no DICOM series", where=str(path))
    if len(series) > 1:
        listed = ", ".join(f"{Path(n[0]).parent} ({len(n)} files)" for n in series.values())
        raise DataError(
            f"there are {len(series)} DICOM series: {listed}",
            where=str(path),
            remedy="name the folder of one series, or one of its files",
        )
    (names,) = series.values()
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(names)
    reader.MetaDataDictionaryArrayUpdateOn()
    image = reader.Execute()
    _check_slices(path, [_position(reader, k) for k in range(len(names))])
    return _from_itk(image)


def _position(reader: object, number: int) -> np.ndarray | None:
    key = "0020|0032"
    if not reader.HasMetaDataKey(number, key):  # type: ignore[attr-defined]
        return None
    text = reader.GetMetaData(number, key)  # type: ignore[attr-defined]
    return np.array([float(part) for part in text.split("\\")])


def _check_slices(path: Path, positions: Sequence[np.ndarray | None]) -> None:
    known = [position for position in positions if position is not None]
    if len(known) != len(positions) or len(known) < 3:
        return
    steps = np.linalg.norm(np.diff(np.stack(known), axis=0), axis=1)
    usual = float(np.median(steps))
    odd = np.flatnonzero(np.abs(steps - usual) > 0.01 * usual + 0.01)
    if len(odd):
        raise DataError(
            f"its slices are not evenly spaced: {steps[odd[0]]:.3g} mm after slice {odd[0] + 1}, "
            f"{usual:.3g} mm elsewhere",
            where=str(path),
            remedy="look for missing or doubled slices",
        )


def _from_itk(image: object) -> Scan:
    import SimpleITK

    dimension = image.GetDimension()  # type: ignore[attr-defined]
    array = SimpleITK.GetArrayFromImage(image)  # z, y, x and channels last
    several = image.GetNumberOfComponentsPerPixel() > 1  # type: ignore[attr-defined]
    channels = np.moveaxis(array, -1, 0) if several else array[None]
    values = _plain(channels.transpose(0, *range(channels.ndim - 1, 0, -1)))
    if dimension == 2 or values.shape[-1] == 1:
        return Scan(values.reshape(values.shape[:3]), None)
    if dimension != 3:
        raise ValueError(f"it has {dimension} axes")
    affine = np.eye(4)
    direction = np.array(image.GetDirection()).reshape(3, 3)  # type: ignore[attr-defined]
    affine[:3, :3] = direction * np.array(image.GetSpacing())  # type: ignore[attr-defined]
    affine[:3, 3] = image.GetOrigin()  # type: ignore[attr-defined]
    return Scan(values, _LPS_TO_RAS @ affine)


def _read_flat(path: Path, *, colours: bool) -> Scan:
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        pages = getattr(opened, "n_frames", 1)
        if pages > 1:
            raise ValueError(f"it holds {pages} pages")
        image = ImageOps.exif_transpose(opened)
        if image.mode in ("RGBA", "CMYK", "YCbCr", "LAB", "HSV", "LA"):
            image = image.convert("L" if image.mode == "LA" else "RGB")
        if image.mode == "P" and colours:  # a label's palette numbers are its classes
            image = image.convert("RGB")
        values = np.array(image)
    if values.dtype == bool:
        values = values.astype(np.uint8)
    return Scan(_plain(np.moveaxis(values, -1, 0) if values.ndim == 3 else values[None]), None)


def _plain(values: np.ndarray) -> np.ndarray:
    """Native byte order; floats as float32."""
    kind = np.float32 if values.dtype.kind == "f" else values.dtype.newbyteorder("=")
    if values.dtype.kind not in "fiu":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    return np.ascontiguousarray(values, dtype=kind)
