"""Jobs that take turns on one thread's worth of time.

A job runs in a thread of its own, but only while its owner waits for it, until it pauses or ends.
So jobs interleave at the same places every time, and never touch the same things at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

Pause = Callable[[], None]
Job = Callable[[Pause], None]


class Stopped(BaseException):
    """Raised inside a job whose owner gives it up; not an error that a job should handle."""


class Turns:
    """One job, which runs from one `resume` to its next pause."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._go, self._back = SimpleQueue[None](), SimpleQueue[None]()
        self._error: BaseException | None = None
        self._ended = self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> bool:
        """Runs the job until it pauses, False, or ends, True; raises what the job raises."""
        self._go.put(None)
        self._back.get()
        if self._error is not None:
            raise self._error
        return self._ended

    def stop(self) -> None:
        """Ends the job at its pause, or at the next one if it is running."""
        self._stopping = True
        self._go.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._wait()
            self._job(self._pause)
        except Stopped:
            pass
        except BaseException as error:  # the owner raises it
            self._error = error
        self._ended = True
        self._back.put(None)

    def _pause(self) -> None:
        self._back.put(None)
        self._wait()

    def _wait(self) -> None:
        self._go.get()
        if self._stopping:
            raise Stopped


def in_turns(jobs: Iterable[Job], at_once: Callable[[], int]) -> None:
    """Runs all jobs, so many at once, a turn each in a fixed order; the first error ends all.

    Args:
        jobs: called with a function that pauses them. A job that ends makes room for the next.
        at_once: how many may be under way, at least one; asked before a cycle while jobs wait.
    """
    waiting, running = deque(jobs), list[Turns]()
    try:
        while waiting or running:
            room = max(1, at_once()) if waiting else 0
            while waiting and len(running) < room:
                running.append(Turns(waiting.popleft()))
            running = [turns for turns in running if not turns.resume()]
    finally:
        for turns in running:
            turns.stop()
