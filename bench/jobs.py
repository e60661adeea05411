"""The tiny job that both engines' exchanges are timed on."""

from __future__ import annotations

from autofedavg.engines.remote.job import Job
from autofedavg.experiment.config import parse_study

TASK = {
    "name": "synthetic",
    "scale": 0.02,
    "extent": [24.0, 24.0, 30.0],
    "pipeline": {"roi": [16, 16, 8], "channels": [4, 8]},
}
TRAINING = {"iterations": 2, "batch_size": 2, "learning_rate": 3e-3}


def tiny_job(rounds: int, steps: int, together: int = 1) -> Job:
    """Three sites that learn in every round.

    Args:
        rounds: of training.
        steps: S, on beta.
        together: steps_per_message.
    """
    method = {"name": "auto-fedavg", "t0": 1, "S": steps, "steps_per_message": together}
    study = parse_study(
        {
            "study": {"name": "bench"},
            "base": {"rounds": rounds, "task": TASK, "training": TRAINING},
            "run": [{"name": "n-dirichlet", "method": method}],
        },
        "bench",
    )
    config = study.runs[0].resolved()
    return Job.of("bench", config, 0, config.task.site_names(), threads=1, wait=300.0)
