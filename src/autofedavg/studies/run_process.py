"""A process that makes one run after another: `python -m autofedavg.studies.run_process FOLDER`.

`FOLDER/<n>.json` is its n-th run: the run's folder and the machine, or null if there is none. It
answers with `FOLDER/<n>.done.json`: whether it ends, and the error if there was one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from autofedavg.core.errors import AutoFedAvgError, error_facts
from autofedavg.core.problem import Problem
from autofedavg.engines.simulator.workers import gradients_after_fork
from autofedavg.experiment.folder_writer import write_atomically
from autofedavg.studies.machine import Machine

ASK = 0.02  # seconds between two looks for the next run
OUTPUT = "output.txt"


class RunProcess(NamedTuple):
    """A process, and the folder for what it is asked, answers and prints.

    `turn` counts its runs; `printed` is how much it had printed before the last one began.
    """

    number: int
    scratch: Path
    turn: int = 0
    printed: int = 0

    def next(self) -> Self:
        """The same process with its next run."""
        output = self.scratch / OUTPUT
        printed = output.stat().st_size if output.exists() else 0
        return self._replace(turn=self.turn + 1, printed=printed)

    @property
    def asked(self) -> Path:
        return self.scratch / f"{self.turn}.json"

    @property
    def done(self) -> Path:
        return self.scratch / f"{self.turn}.done.json"

    @property
    def answer(self) -> dict[str, Any]:
        """What it has answered to its last run; nothing before."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self.done.read_bytes()))
        return {}


def main() -> None:
    """Starts or resumes the runs that it is given, until it is given none or one fails."""
    from autofedavg.studies.launch import go_on  # which imports this module by way of `parallel`

    process = RunProcess(os.getpid(), Path(sys.argv[1]))
    problems: dict[str, Problem] = {}
    while True:
        process = process.next()
        while not process.asked.exists():
            if not process.scratch.exists():  # the command has ended
                return
            time.sleep(ASK)
        if (what := json.loads(process.asked.read_bytes())) is None:
            return
        folder = Path(what["folder"])
        try:
            go_on(folder, Machine(**what["machine"]), problems)
        except AutoFedAvgError as error:
            facts = error_facts(error)
            if str(folder) not in facts["where"]:
                facts["where"] = f"{folder}: {facts['where']}".removesuffix(": ")
            write_atomically(process.done, json.dumps({**facts, "ends": True}).encode())
            sys.exit(error.exit_code)
        ends = _spent()
        write_atomically(process.done, json.dumps({"ends": ends}).encode())
        if ends:
            return


def _spent() -> bool:
    """Whether this process could start no workers for another run on the CPU."""
    on_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return not on_gpu and not gradients_after_fork()


if __name__ == "__main__":
    main()
