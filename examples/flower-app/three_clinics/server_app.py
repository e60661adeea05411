"""What the server does."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from autofedavg.engines.flower.dropin import LearnedFedAvg
from three_clinics.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains over three clinics."""
    torch.manual_seed(0)
    strategy = LearnedFedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3, S=40)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["rounds"]),
    )
    rounds = {t: dict(metrics) for t, metrics in result.train_metrics_clientapp.items()}
    Path(str(context.run_config["result"])).write_text(json.dumps(rounds, indent=1))
