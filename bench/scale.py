"""`federate` with more and more clients, to the end: one client must cost what one always costs."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from autofedavg import LoaderSite, Machine, federate
from bench.memory import MB, peak, start, touch_libraries
from bench.own import Batches, confidence
from bench.rounds import BATCH
from bench.table import Row, Section
from bench.timing import Load, Sample
from bench.work import cross_entropy, images, sgd, small_cnn

FLAT = 1.1
CHOSEN_ON = 4  # validation cases


def measure(clients: tuple[int, ...], rounds: int) -> Section:
    """The section: whole runs with the same cases per client, each in a process of its own."""
    load = Load()
    found = {K: _whole_run(K, rounds) for K in clients}
    few, many = min(clients), max(clients)
    rows = [Row(f"{K} clients, a client's round", Sample((found[K][0],)), "ms") for K in clients]
    rows += [Row(f"{K} clients, memory a client", Sample((found[K][1],)), "MB") for K in clients]
    for place, what in enumerate(("time", "memory")):
        ratio = Sample((found[many][place] / found[few][place],))
        rows.append(Row(f"{many} over {few} clients, {what} a client", ratio, limit=FLAT))
    title = f"12. Whole runs of federate, {rounds} rounds, {BATCH} training cases a client"
    return Section(title, rows, load.of_others())


def _whole_run(K: int, rounds: int) -> tuple[float, float]:
    """(milliseconds, MB) per client; the time also per round, start and end included."""
    process, pipe = start(_run, K, rounds)
    seconds, held = pipe.recv()
    process.join()
    return 1000 * seconds / K / rounds, held / MB / K


def _run(pipe: Connection, K: int, rounds: int) -> None:
    touch_libraries()
    # All clients have the same cases: what is measured is what a client costs beside its data.
    cases = images(BATCH)
    few = (cases[0][:CHOSEN_ON], cases[1][:CHOSEN_ON])
    sites = {f"site-{k:04d}": LoaderSite(Batches(cases), Batches(few)) for k in range(K)}
    before, began = peak(), time.perf_counter()
    federate(
        small_cnn,
        cross_entropy,
        sites,
        confidence,
        method="fedavg",
        rounds=rounds,
        training=sgd(BATCH),
        machine=Machine(device="cpu", workers=1, threads=1),
    )
    pipe.send((time.perf_counter() - began, peak() - before))
