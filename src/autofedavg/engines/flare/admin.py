"""Speaks to a FLARE server as its administrator: submits a job and says how it goes.

A script of its own, without the package: `python admin.py USER KIT`. On standard input one JSON
table a line, on standard output one for each: {"sites": true}, {"submit": FOLDER}, {"job": ID}.
It is apart from the user's process because FLARE's session starts threads and sets up logging.
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
    """Answers until nobody asks any more, and then ends whatever FLARE is doing."""
    said, sys.stdout = sys.stdout, sys.stderr  # FLARE prints
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_speak, args=(asked, said, *sys.argv[1:3]), daemon=True).start()
    for line in sys.stdin:
        asked.put(line)
    os._exit(0)  # a session's threads would keep the process


def _speak(asked: queue.SimpleQueue[str], said: TextIO, user: str, kit: str) -> None:
    session: Session | None = None
    while True:
        line = asked.get()
        answer: dict[str, Any]
        try:
            session = session or new_secure_session(user, kit, timeout=5.0)
            answer = _answer(session, json.loads(line))
        except Exception as error:  # whatever FLARE raises is for the other side to judge
            answer = {"error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(Exception):
                if session:
                    session.close()
            session = None
        said.write(json.dumps(answer) + "\n")
        said.flush()


def _answer(session: Session, asked: dict[str, Any]) -> dict[str, Any]:
    if "sites" in asked:
        return {"sites": [client.name for client in session.get_connected_client_list()]}
    if "submit" in asked:
        return {"job": session.submit_job(asked["submit"])}
    return {"status": str(session.get_job_meta(asked["job"]).get("status"))}


if __name__ == "__main__":
    main()
