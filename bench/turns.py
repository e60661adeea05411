"""Contestants that have a loop of their own: they live in a process each and go on when told."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from bench.timing import Run

Turn = Callable[[], None]


class Enough(Exception):
    """Raised in a contestant's callback when nothing more is to be timed."""


@contextlib.contextmanager
def in_turns(play: Callable[[Turn], None]) -> Iterator[Run]:
    """A call lets `play` go on until it takes its next turn, that is to the end of one more round.

    The first call also pays for its start: let it be a warm-up.

    Args:
        play: runs many rounds and takes a turn after each.
    """
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    process = context.Process(target=_play, args=(play, far, os.getpid()))
    process.start()
    far.close()

    def run() -> None:
        near.send(True)
        try:
            near.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"a contestant ended with code {process.exitcode}") from None

    try:
        yield run
    finally:
        with contextlib.suppress(BrokenPipeError):
            near.send(False)
        process.join()
        near.close()


def _play(play: Callable[[Turn], None], pipe: Connection, parent: int) -> None:
    def wait() -> None:
        # Other contestants hold the far end too: the pipe does not close with the parent.
        while not pipe.poll(1.0):
            if os.getppid() != parent:
                raise Enough
        if not pipe.recv():
            raise Enough

    def turn() -> None:
        pipe.send(True)
        wait()

    with contextlib.suppress(Enough):
        wait()
        play(turn)
