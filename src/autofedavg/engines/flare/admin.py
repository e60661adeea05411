"""Talks to a FLARE server as its administrator: submits jobs and reports their status.

A script that imports nothing of this package: `python admin.py USER KIT`. It reads one JSON object
a line from standard input and writes one for each: {"sites": true}, {"submit": FOLDER},
{"job": ID}. It is a process of its own because FLARE's session starts threads and sets up logging.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from typing import Any, TextIO

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session


def main() -> None:
    """Replies until standard input ends; then exits at once."""
    output, sys.stdout = sys.stdout, sys.stderr  # FLARE prints
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(requests, output, *sys.argv[1:3]), daemon=True).start()
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # a session's threads would keep the process alive


def _serve(requests: queue.SimpleQueue[str], output: TextIO, user: str, kit: str) -> None:
    session: Session | None = None
    while True:
        line = requests.get()
        reply: dict[str, Any]
        try:
            session = session or new_secure_session(user, kit, timeout=5.0)
            reply = _reply(session, json.loads(line))
        except Exception as error:  # the caller decides what any error of FLARE's means
            reply = {"error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(Exception):
                if session:
                    session.close()
            session = None
        output.write(json.dumps(reply) + "\n")
        output.flush()


def _reply(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    if "sites" in request:
        return {"sites": [client.name for client in session.get_connected_client_list()]}
    if "submit" in request:
        return {"job": session.submit_job(request["submit"])}
    return {"status": str(session.get_job_meta(request["job"]).get("status"))}


if __name__ == "__main__":
    main()
