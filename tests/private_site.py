"""A site in a process of its own, in tests: requests and replies go through a pipe."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

from autofedavg.engines.remote.site_service import SiteService
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import decode, encode
from warm import WARM, Forked


class SiteProcess:
    """The process, as a server sees it."""

    def __init__(self, job: Path, site: str, file: Path) -> None:
        self._pipe, theirs = WARM.Pipe()
        log = file.with_suffix(".log")
        self.process = Forked(_serve, theirs, job.read_text(), site, file, log=log)
        theirs.close()

    def ask(self, verb: str, message: Message) -> Message:
        self.post(verb, message)
        return decode(self._pipe.recv_bytes())

    def post(self, verb: str, message: Message) -> None:
        """Asks without waiting for the reply."""
        self._pipe.send_bytes(verb.encode())
        self._pipe.send_bytes(encode(message))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()


def _serve(pipe: Connection, job: str, site: str, file: Path) -> None:
    service = SiteService(job, site, file)
    while True:
        try:
            verb, message = pipe.recv_bytes(), pipe.recv_bytes()
        except EOFError:
            os._exit(0)
        pipe.send_bytes(encode(service.answer(verb.decode(), decode(message))))
