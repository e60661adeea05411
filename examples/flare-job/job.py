"""Trains over three clinics in FLARE's simulator: python job.py [WORKSPACE]."""

from __future__ import annotations

import sys
from pathlib import Path

from network import CASES, Net
from nvflare.recipe import SimEnv

from autofedavg.engines.flare.dropin import LearnedFedAvgRecipe


def main(workspace: str) -> None:
    """Runs the job."""
    here = Path(__file__).parent
    recipe = LearnedFedAvgRecipe(
        name="three-clinics",
        model=Net(),
        min_clients=3,
        num_rounds=2,
        train_script=str(here / "client.py"),
        key_metric="loss",
        key_metric_mode="min",
        S=40,
    )
    recipe.add_client_file(str(here / "network.py"))
    recipe.execute(SimEnv(clients=sorted(CASES), workspace_root=workspace))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "workspace")
