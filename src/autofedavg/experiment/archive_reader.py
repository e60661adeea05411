"""Reads archives: one zip file per study, unpacked into a temporary folder when it is first read.

`results/demo.zip` stands for the study's folder, `results/demo.zip/fedavg/seed-0` for a run in it.
An archive may come from anywhere, so its listing is checked before anything is unpacked.
"""

from __future__ import annotations

import errno
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from weakref import finalize

from autofedavg.core.errors import RunError
from autofedavg.experiment.files import LARGE, naming

SUFFIX = ".zip"
MOST_FILES = 100_000
MOST_BYTES = 2**32  # of all files together, unpacked
CHUNK = 4096  # bytes; LZMA can make 28 MB of so many, and more at a time would fill the memory
REMEDY = "fetch the archive again, or make it again with `autofedavg archive`"


class _Archive:
    """An archive whose listing has been checked, and the folder it is unpacked into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _damage_named(path), zipfile.ZipFile(path) as packed:
            self._files = _checked(packed.infolist())
            held = Path(tempfile.mkdtemp(prefix="autofedavg-")).resolve()
        finalize(self, shutil.rmtree, held, ignore_errors=True)  # at the latest at exit
        self.root = held / path.stem

    def unpack(self, inner: PurePosixPath) -> None:
        """Unpacks the files at or below a path, and those at the top: they list the runs."""
        wanted = [
            entry
            for name, entry in self._files.items()
            if (len(name.parts) == 1 or name.is_relative_to(inner))
            and not (self.root / name).exists()
        ]
        if not wanted:
            return
        with _damage_named(self.path), zipfile.ZipFile(self.path) as packed:
            for entry in wanted:
                self._write(packed, entry)

    def _write(self, packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        place = self.root / entry.filename
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with packed.open(entry) as source, place.open("xb") as copy:
                while content := source.read(CHUNK):  # never more than the listing says
                    copy.write(content)
            if place.stat().st_size != entry.file_size:
                raise ValueError(f"{entry.filename} is cut off")
        except BaseException:
            place.unlink(missing_ok=True)
            raise


_known: dict[tuple[Path, int, int, int], _Archive] = {}  # by path, time of change, size, inode


def as_folder(path: Path) -> Path:
    """A folder to read runs from: the path itself, or what an archive holds, unpacked.

    Args:
        path: a folder, an archive, or a path in an archive.

    Raises:
        RunError: the archive is damaged, or holds what no archive of runs holds.
    """
    place = archive_at(path)
    if place is None or ".." in path.relative_to(place).parts:
        return path
    about, inner = place.stat(), PurePosixPath(path.relative_to(place))
    key = (place.absolute(), about.st_mtime_ns, about.st_size, about.st_ino)
    if key not in _known:  # an archive that has changed is another one
        _known[key] = _Archive(place.absolute())
    _known[key].unpack(inner)
    return _known[key].root / inner


def archive_at(path: Path) -> Path | None:
    """The archive that a path names, or leads into."""
    above = (path, *path.parents)
    return next((place for place in above if place.suffix == SUFFIX and place.is_file()), None)


@contextmanager
def archives_named() -> Iterator[None]:
    """Lets errors name the archive, not the temporary folder that it is unpacked into."""
    try:
        yield
    except RunError as error:
        said = [error.what, error.where, error.remedy]
        for archive in _known.values():
            said = [text.replace(str(archive.root), str(archive.path)) for text in said]
        raise type(error)(said[0], where=said[1], remedy=said[2]) from error


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    with naming(path, "this archive cannot be read", REMEDY):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            raise RunError(
                f"this archive cannot be unpacked ({error.strerror})",
                where=str(path),
                remedy="make room in the temporary folder, or name another one in TMPDIR",
            ) from error


def _checked(entries: list[zipfile.ZipInfo]) -> dict[PurePosixPath, zipfile.ZipInfo]:
    """The files of an archive by name; refuses all that could harm where they are unpacked."""
    if len(entries) > MOST_FILES:
        raise ValueError(f"it lists {len(entries)} files, more than {MOST_FILES}")
    size = sum(entry.file_size for entry in entries)
    if size > MOST_BYTES or any(entry.file_size > LARGE for entry in entries):
        raise ValueError(f"its files have {size} bytes, too many to unpack")
    files: dict[PurePosixPath, zipfile.ZipInfo] = {}
    for entry in entries:
        name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
        inside = PurePosixPath(name)
        plain = name.rstrip("/") == str(inside) and not inside.is_absolute()
        if not plain or ".." in inside.parts or "\\" in name or "\0" in name or ":" in name:
            raise ValueError(f"{name!r} is not a path inside the archive")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"{name!r} is a link or a device, not a file")
        if entry.flag_bits & 1:
            raise ValueError(f"{name!r} is encrypted")
        if entry.is_dir():
            continue
        if inside in files:
            raise ValueError(f"{name!r} is listed twice")
        files[inside] = entry
    if above := next((up for name in files for up in name.parents if up in files), None):
        raise ValueError(f"{str(above)!r} is a file and a folder")
    return files
