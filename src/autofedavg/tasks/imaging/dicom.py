"""DICOM series, named by their folder or by one of their files."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.readers import DICOM, Scan, blank, from_itk, itk_header

KEY = "0020|0032"  # Image Position (Patient)
_SWITCH = threading.Lock()  # ITK's warnings are switched for the whole process


def read_series(path: Path) -> Scan:
    """Reads a series; raises DataError if it is ambiguous, or slices are missing or shifted."""
    names = files_of(path)
    with _quiet():
        reader = SimpleITK.ImageSeriesReader()
        reader.SetFileNames(names)
        reader.MetaDataDictionaryArrayUpdateOn()
        image = reader.Execute()
    if image.GetDimension() == 3 and len(names) > 1:
        placed = [k for k in range(len(names)) if reader.HasMetaDataKey(k, KEY)]
        texts = [reader.GetMetaData(k, KEY).split("\\") for k in placed]
        if len(texts) == image.GetSize()[2]:  # slices without a position cannot be checked
            _check_slices(path, np.array(texts, float), image)
    return from_itk(image)


def series_header(path: Path) -> Scan:
    """The header of a series, without reading pixels."""
    names = files_of(path)
    if path.is_dir():
        below = sorted(f for f in path.rglob("*") if f.is_file() and f.name[:1] != ".")
        damaged = [f.name for f in below if f.suffix.lower() in DICOM and str(f) not in names]
        if damaged:  # the reader skips them silently
            raise ValueError(f"not readable as DICOM: {', '.join(damaged)}")
    with _quiet():
        first = itk_header(Path(names[0]))
    if len(names) == 1:
        return first
    sizes = first.grid[::-1] if len(first.grid) == 2 else first.grid[:2]
    lies = first.lies if first.affine is None else first.affine
    return Scan(blank((len(first.values), *sizes, len(names))), None, lies=lies)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences ITK's warnings: of files other than DICOM, and of slices, which are checked here."""
    with _SWITCH:
        before = SimpleITK.ProcessObject.GetGlobalWarningDisplay()
        SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
        try:
            yield
        finally:
            SimpleITK.ProcessObject.SetGlobalWarningDisplay(before)


def files_of(path: Path) -> Sequence[str]:
    """The files of a series in order; raises DataError unless there is exactly one series."""
    folders = {path.parent}
    if path.is_dir():
        folders = {f.parent for f in path.rglob("*") if f.is_file() and f.name[:1] != "."}
    with _quiet():
        series = [
            names
            for folder in sorted(folders)
            for uid in SimpleITK.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
            for names in [SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), uid)]
            if path.is_dir() or str(path) in names
        ]
    if not series:
        raise DataError(
            "no DICOM series found",
            where=str(path),
            remedy="name a folder of DICOM files, or one of them",
        )
    if len(series) > 1:
        listed = ", ".join(f"{Path(n[0]).parent} ({len(n)} files)" for n in series)
        raise DataError(
            f"found {len(series)} DICOM series: {listed}",
            where=str(path),
            remedy="name the folder of one series, or one of its files",
        )
    names: Sequence[str] = series[0]
    return names


def _check_slices(path: Path, positions: np.ndarray, image: Any) -> None:
    steps = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    usual = float(np.median(steps))
    odd = np.flatnonzero(np.abs(steps - usual) > 0.01 * usual + 0.01)
    if usual < 1e-3:
        odd = np.array([0])
    if len(odd):
        raise DataError(
            f"its slices are not evenly spaced: {steps[odd[0]]:.3g} mm after slice {odd[0] + 1}, "
            f"{usual:.3g} mm elsewhere",
            where=str(path),
            remedy="look for missing or duplicate slices",
        )
    expected = image.TransformIndexToPhysicalPoint((0, 0, len(positions) - 1))
    if (apart := float(np.linalg.norm(positions[-1] - expected))) > 0.1 * usual + 0.1:
        raise DataError(
            f"its slices are shifted against each other, by {apart:.3g} mm in all",
            where=str(path),
            remedy="resample it to a straight grid (a tilted gantry makes such series)",
        )
