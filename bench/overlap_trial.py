"""TRIAL, removed later: where a 3D step's time goes, and how far streams overlap.

python -m bench.overlap_trial streams   # ms a step for 1, 2, 4, 8 graphs, several ways
python -m bench.overlap_trial profile   # kernels of one replay, by time
python -m bench.overlap_trial host      # a round of four sites by parts, 1 and 4 lanes
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.simulator.lanes import Lane
from autofedavg.engines.simulator.overlapping import OverlappedGroup
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.client import ClientGroup
from autofedavg.tasks.imaging.segmentation import loss, network
from bench.gpu_sites import _round, volumes
from bench.gpu_volumes import BATCH, HOW

CUDA = torch.device("cuda")
TRAINING = Training(iterations=50, batch_size=BATCH, precision="bf16")


def batch():
    image = torch.randn(BATCH, 1, *HOW.roi, device=CUDA)
    return image, (image > 2).to(torch.uint8)


def trainers(n):
    first = network(HOW)
    return [LocalTrainer(copy.deepcopy(first), loss(HOW), TRAINING, CUDA, True) for _ in range(n)]


def recorded(made, streams):
    x = batch()
    graphs = []
    for trainer, stream in zip(made, streams, strict=True):
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            trainer.train([x] * 5, 1e-4)
        torch.cuda.synchronize()
        (one,) = trainer._replays._recordings.values()
        graphs.append(one.graph)
    return graphs


def ms(run, count=30):
    run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        run()
    launched = time.perf_counter() - begun
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun) / count, 1e3 * launched / count


def streams() -> None:
    print("CUDA_DEVICE_MAX_CONNECTIONS", os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
    for search in (False, True):
        torch.backends.cudnn.benchmark = search
        lanes = [torch.cuda.Stream() for _ in range(8)]
        made = trainers(8)
        graphs = recorded(made, lanes)
        for n in (1, 2, 3, 4, 6, 8):
            chosen = tuple(zip(graphs[:n], lanes[:n], strict=True))

            def run(pairs=chosen):
                for graph, stream in pairs:
                    with torch.cuda.stream(stream):
                        graph.replay()

            whole, launched = ms(run)
            print(
                f"search={search} graphs on streams n={n}: {whole:.2f} ms, {whole / n:.2f} each; "
                f"launching {launched / n:.3f} each",
                flush=True,
            )
        print(f"memory {torch.cuda.memory_reserved() / 1e9:.1f} GB for 8")
        del graphs, made
        torch.cuda.empty_cache()
    torch.backends.cudnn.benchmark = False
    # One graph whose branches are the clients' steps.
    made, x = trainers(4), batch()
    for trainer in made:
        trainer.train([x] * 2, 1e-4)
    torch.cuda.synchronize()
    side = [torch.cuda.Stream() for _ in made]
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
        for trainer, stream in zip(made, side, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                trainer._backward(x)
                trainer._optimiser.step()
        for stream in side:
            main.wait_stream(stream)
    whole, launched = ms(graph.replay)
    print(
        f"one graph of 4 branches: {whole:.2f} ms, {whole / 4:.2f} each; launching {launched:.3f}"
    )


def profile() -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    (trainer,) = trainers(1)
    (graph,) = recorded([trainer], [torch.cuda.Stream()])
    whole, _ = ms(graph.replay)
    print(f"one replay: {whole:.2f} ms")
    with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
    total, rows = 0.0, []
    for one in found.key_averages():
        spent = one.self_device_time_total / 5e3
        if spent:
            rows.append((spent, one.count / 5, one.key[:110]))
            total += spent
    print(f"kernels together: {total:.2f} ms, {sum(r[1] for r in rows):.0f} of them")
    for spent, count, name in sorted(rows, reverse=True)[:32]:
        print(f"{spent:7.3f} ms {count:5.0f} x {1e3 * spent / count:7.1f} us  {name}")


def host() -> None:
    clock = {"prepare": 0.0, "paused": 0.0, "train": 0.0}
    paced = Lane.paced

    def timed(lane, batches, pause):
        inner = iter(batches)

        def pulled():
            while True:
                begun = time.perf_counter()
                try:
                    one = next(inner)
                except StopIteration:
                    return
                clock["prepare"] += time.perf_counter() - begun
                yield one

        def waited():
            begun = time.perf_counter()
            pause()
            clock["paused"] += time.perf_counter() - begun

        return paced(lane, pulled(), waited)

    Lane.paced = timed
    with tempfile.TemporaryDirectory() as folder:
        problem = volumes(Path(folder))
        for n in (0, 1, 2, 3, 4):
            with Simulator(problem, TRAINING, Seeds(0), device="cuda") as simulator:
                clients = simulator._groups[0]._clients
                group = OverlappedGroup(clients, lambda n=n: n) if n else ClientGroup(clients)
                simulator._groups = [group]
                run, _ = _round(problem, simulator, 1)
                run(), run()
                clock["prepare"] = clock["paused"] = 0.0
                begun = time.perf_counter()
                for _ in range(5):
                    run()
                spent = (time.perf_counter() - begun) / 5
                steps = 4 * TRAINING.iterations
                print(
                    f"lanes {n}: a round {1e3 * spent:.0f} ms, {1e3 * spent / steps:.2f} ms a step;"
                    f" host preparing {1e3 * clock['prepare'] / 5 / steps:.3f} ms a step; memory"
                    f" {torch.cuda.memory_reserved() / 1e9:.1f} GB",
                    flush=True,
                )
            del group, run, simulator, clients
            torch.cuda.empty_cache()


if __name__ == "__main__":
    {"streams": streams, "profile": profile, "host": host}[sys.argv[1]]()
