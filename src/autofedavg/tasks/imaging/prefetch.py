"""The next batches are made while the network works on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def ahead(jobs: Iterable[Callable[[], Item]], count: int) -> Iterator[Item]:
    """The results of jobs in order, up to `count` of them made in advance by a thread.

    Args:
        jobs: each makes one item and depends on no other.
        count: how many items may wait; 0 makes every item when it is asked for.
    """
    if not count:
        for job in jobs:
            yield job()
        return
    coming = iter(jobs)
    pool = ThreadPoolExecutor(1)
    try:
        waiting: deque[Future[Item]] = deque(pool.submit(job) for job in islice(coming, count))
        while waiting:
            item = waiting.popleft().result()
            waiting.extend(pool.submit(job) for job in islice(coming, 1))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
