"""What runs at the server in the benchmark: the product's Controller, with a clock on its fleet."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from autofedavg.engines.flare.controller import AutoFedAvgController
from autofedavg.engines.flare.transport import FlareTransport

PATH = f"{__name__}.ClockedController"
TIMES = "times.jsonl"


class ClockedController(AutoFedAvgController):  # type: ignore[misc]
    """Writes down the verb and the seconds of every exchange."""

    def control_flow(self, abort_signal, fl_ctx) -> None:
        out = Path(os.environ["AUTOFEDAVG_RUNS"]) / TIMES
        ask = FlareTransport.ask

        def clocked(transport, verb, messages, within):
            started = time.perf_counter()
            try:
                return ask(transport, verb, messages, within)
            finally:
                with out.open("a") as lines:
                    lines.write(json.dumps([verb, time.perf_counter() - started]) + "\n")

        FlareTransport.ask = clocked
        super().control_flow(abort_signal, fl_ctx)
