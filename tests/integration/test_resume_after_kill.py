"""`kill -9` at random moments, `resume` each time: the same bits as a run never killed."""

import json
import random
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from folders import model_file

ROUNDS = 60
SET = ["--set", f"rounds={ROUNDS}"]


def lines(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def outcome(folder: Path) -> dict:
    state = load_file(folder / "checkpoints" / f"last-{ROUNDS}.safetensors")
    best = load_file(model_file(folder, ending="safetensors"))
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {
        "state": {name: tensor.numpy().tobytes() for name, tensor in state.items()},
        "best": {name: tensor.numpy().tobytes() for name, tensor in best.items()},
        "scores": (folder / "scores.csv").read_bytes(),
        "rounds": [
            {key: line[key] for key in ("t", "alpha", "beta", "loss", "validation")}
            for line in rounds
        ],
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_nothing(kills: int, tiny: Path, tmp_path: Path, command, start) -> None:
    only = ["--only", "n-dirichlet"]
    whole = tmp_path / "whole"
    assert command("run", tiny, *SET, *only, "--out", whole).returncode == 0

    seed = random.SystemRandom().randrange(2**32)
    print(f"moments drawn with seed {seed}")
    draw = random.Random(seed)
    folder = tmp_path / "killed" / "tiny" / "n-dirichlet" / "seed-0"
    first = ["run", tiny, *SET, *only, "--out", tmp_path / "killed"]
    for _ in range(kills):
        before = lines(folder)
        process = start(*(first if before == 0 else ["resume", folder]))
        target = min(before + draw.randint(1, 2), ROUNDS - 1)
        while lines(folder) < target and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.15))
        assert process.poll() is None, process.communicate()
        process.kill()
        process.wait()
    assert json.loads((folder / "status.json").read_text())["state"] == "running"

    last = command("resume", folder)
    assert last.returncode == 0, last.stderr
    expected = outcome(whole / "tiny" / "n-dirichlet" / "seed-0")
    assert outcome(folder) == expected
    assert [line["t"] for line in expected["rounds"]] == list(range(1, ROUNDS + 1))
