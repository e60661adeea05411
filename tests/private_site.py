"""A site in a process of its own, in tests: requests come by stdin, replies go to stdout.

python private_site.py JOB SITE SITE_FILE
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from autofedavg.engines.remote.site_service import SiteService
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import decode, encode


def send(pipe: BinaryIO, *parts: bytes) -> None:
    for part in parts:
        pipe.write(struct.pack("<q", len(part)) + part)
    pipe.flush()


def receive(pipe: BinaryIO) -> bytes:
    head = pipe.read(8)
    return pipe.read(*struct.unpack("<q", head)) if len(head) == 8 else b""


class SiteProcess:
    """The process, as a server sees it."""

    def __init__(self, job: Path, site: str, file: Path) -> None:
        command = [sys.executable, __file__, str(job), site, str(file)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, verb: str, message: Message) -> Message:
        self.post(verb, message)
        return decode(receive(self.process.stdout))

    def post(self, verb: str, message: Message) -> None:
        """Asks without waiting for the reply."""
        send(self.process.stdin, verb.encode(), encode(message))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    job, site, file = sys.argv[1:]
    service = SiteService(Path(job).read_text(), site, Path(file))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not be taken for a reply
    while verb := receive(sys.stdin.buffer):
        send(replies, encode(service.answer(verb.decode(), decode(receive(sys.stdin.buffer)))))


if __name__ == "__main__":
    main()
