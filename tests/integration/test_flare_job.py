"""The example of a FLARE job with learned weights, in FLARE's own simulator."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

JOB = Path(__file__).parents[2] / "examples" / "flare-job"
SITES = ("harbour", "north", "south")


def simulated(folder, workspace):
    return subprocess.run(
        [sys.executable, "job.py", str(workspace)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "HOME": str(workspace.parent), "OMP_NUM_THREADS": "1"},
    )


def copied(tmp_path):
    return shutil.copytree(JOB, tmp_path / "job", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.slow
def test_the_example_job(tmp_path):
    folder = copied(tmp_path)
    done = simulated(folder, tmp_path / "workspace")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    server = tmp_path / "workspace/three-clinics/server/simulate_job"
    lines = (server / "metrics/round_metrics.jsonl").read_text().splitlines()
    rounds = [{m["name"]: m["value"] for m in json.loads(x)["aggregated_metrics"]} for x in lines]
    assert len(rounds) == 2
    for metrics in rounds:
        alpha = {site: metrics[f"alpha/{site}"] for site in SITES}
        assert sum(alpha.values()) == pytest.approx(1.0)
        assert 0 < metrics["loss"] < 1
    # Half of harbour's labels are wrong. Its share of the steps is 0.29; over 40 other initial
    # weights and orders of the cases it was given at most 0.07, and then 0.0001.
    assert rounds[0]["alpha/harbour"] < 0.2
    assert rounds[1]["alpha/harbour"] < 0.05
    shipped = {p.name for p in server.glob("app_server/custom/*")} - {"__pycache__"}
    assert shipped == {"client.py", "network.py"}  # our package is not put into the job
    saved = torch.load(server / "app_server/FL_global_model.pt", weights_only=True)["model"]
    # Twelve batches a pass, five passes a round, two rounds, at the largest site.
    assert int(saved["body.1.num_batches_tracked"]) == 120


@pytest.mark.slow
def test_a_script_that_does_not_say_what_to_learn_from(tmp_path):
    folder = copied(tmp_path)
    script = folder / "client.py"
    text = script.read_text()
    script.write_text("".join(x for x in text.splitlines(True) if "answer_with" not in x))
    done = simulated(folder, tmp_path / "workspace")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "client harbour: its script has not called answer_with" in said
    assert "answer_with(network=..., loss=..., batches=...)" in said
