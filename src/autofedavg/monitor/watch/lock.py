"""Whether a process works in a run folder, without touching its lock.

`flock` cannot be asked who holds a lock: to try for it, even shared and for a moment, could make a
run that wants it fail. Linux lists all locks in /proc/locks, by device and inode; reading that list
disturbs nobody.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Lock = Literal["held", "free", "unknown"]

_FIRST_NAMESPACE = 0xEFFFFFFC  # in another one (a container) only its own processes are listed
# Their locks are listed where they were taken, which may be another machine.
_SHARED = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "nfs",
    "ocfs2", "orangefs", "smb", "virtiofs",
)  # fmt: skip


def lock_of(folder: Path, proc: Path = Path("/proc")) -> Lock:
    """Who holds a run folder.

    Args:
        folder: the run folder.
        proc: where the kernel tells its state.

    Returns:
        "held", "free", or "unknown" where the system does not say.
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return "free"
    except OSError:
        return "unknown"
    try:
        identity, system = _identity(handle, proc)
        lines = (proc / "locks").read_text().splitlines()
        contained = (proc / "self" / "ns" / "pid").stat().st_ino != _FIRST_NAMESPACE
    except (OSError, ValueError, KeyError):
        return "unknown"
    finally:
        os.close(handle)
    # "1: FLOCK  ADVISORY  WRITE 28933 fe:00:2146505 0 EOF"; those who wait have "->" before FLOCK
    fields = [line.split() for line in lines]
    if any(len(f) > 5 and f[1] == "FLOCK" and _parsed(f[5]) == identity for f in fields):
        return "held"
    return "unknown" if contained or system.startswith(_SHARED) else "free"


def _identity(handle: int, proc: Path) -> tuple[tuple[int, int, int], str]:
    """Device and inode as the kernel lists them (stat may differ), and the kind of file system."""
    told = (proc / "self" / "fdinfo" / str(handle)).read_text()
    about = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    mount = about["mnt_id"].strip()
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[0] == mount:
            major, minor = map(int, fields[2].split(":"))
            inode = int(about["ino"]) if "ino" in about else os.fstat(handle).st_ino
            return (major, minor, inode), fields[fields.index("-") + 1]
    raise KeyError(mount)


def _parsed(identity: str) -> tuple[int, int, int]:
    major, minor, inode = identity.split(":")
    return int(major, 16), int(minor, 16), int(inode)
