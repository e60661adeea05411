"""`kill -9` at random moments, `resume` each time: the same bits as a run never killed."""

import json
import random
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests_tiny import TINY

import warm
from loader_runs import train_fedbn

PER_KILL = 12  # rounds
MANY = 150  # of runs whose rounds take milliseconds
SHORT = 16  # of studies with many rows; a kill lags the round that it waits for by a few at most
WRITTEN = ("t", "alpha", "beta", "loss", "validation", "validation_local", "validation_personal")
# One method for every way that methods use the port, and what its checkpoint must hold for that.
HOOKS = {
    "scaffold": ("", "memory.c_k"),  # vectors along and back
    "fedprox": (", mu = 0.1", ""),  # a gradient rule
    "ditto": ("", "kept."),  # state at the sites
    "afl": ("", "memory.weights"),  # a probed loss
    "ga": ("", "memory.weights"),  # validation scores
    "fedadam": ("", "memory.v"),  # a server step with memory
    "feddf": (", steps = 2", ""),  # data at the server
}


def lines(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def tensors(path: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def outcome(folder: Path) -> dict:
    """All that must not depend on kills: last state, models to test, scores, rounds."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {
        "models": {
            path.name: tensors(path) for path in (folder / "checkpoints").glob("*.safetensors")
        },
        "scores": (folder / "scores.csv").read_bytes(),
        "rounds": [{key: line.get(key) for key in WRITTEN} for line in rounds],
    }


def status(folder: Path) -> str:
    return json.loads((folder / "status.json").read_text())["state"]


@pytest.fixture
def draw() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"moments drawn with seed {seed}")
    return random.Random(seed)


@pytest.fixture
def forked(tmp_path):
    """The command in a process that has the libraries; killed at the end whatever happens."""
    running = []

    def begun(*arguments: object) -> warm.Forked:
        running.append(warm.command(*arguments, log=tmp_path / "log"))
        return running[-1]

    yield begun
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def kill(draw):
    """Kills a process soon after a run folder has so many rounds."""

    def soon(process: subprocess.Popen | warm.Forked, folder: Path, rounds: int) -> None:
        while lines(folder) < rounds and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.15))
        assert process.poll() is None, process.communicate()
        process.kill()
        process.wait()
        assert status(folder) == "running"

    return soon


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_nothing(kills, tiny, tmp_path, command, start, kill, draw) -> None:
    whole, rounds = tmp_path / "whole", PER_KILL * kills
    often = ["run", tiny, "--set", f"rounds={rounds}", "--only", "n-dirichlet", "--out"]
    assert command(*often, whole).returncode == 0

    folder = tmp_path / "killed" / "tiny" / "n-dirichlet" / "seed-0"
    for _ in range(kills):
        before = lines(folder)
        target = before + draw.randint(1, 2)
        todo = ["resume", folder] if before else [*often, tmp_path / "killed"]
        kill(start(*todo), folder, target)
    last = command("resume", folder)
    assert last.returncode == 0, last.stderr
    expected = outcome(whole / "tiny" / "n-dirichlet" / "seed-0")
    assert outcome(folder) == expected
    assert [line["t"] for line in expected["rounds"]] == list(range(1, rounds + 1))


@pytest.mark.timeout(600)
def test_kills_change_nothing_whatever_a_method_keeps(tmp_path, forked, kill, draw) -> None:
    """A study with a row for every hook of the port, killed once in every row."""
    rows = "".join(
        f'[[run]]\nname = "{name}"\nmethod = {{ name = "{name}"{settings} }}\n'
        for name, (settings, _) in HOOKS.items()
    )
    study = tmp_path / "hooks.toml"
    head = TINY.partition("[[run]]")[0].replace('baseline = "fedavg"\n', "")
    study.write_text(head.replace('name = "synthetic"', 'name = "synthetic"\nproxy = 3') + rows)
    often = ["run", study, "--set", f"rounds={SHORT}", "--out"]
    done = forked(*often, tmp_path / "whole")
    assert done.wait(240) == 0, done.communicate()

    home = tmp_path / "killed" / "tiny"
    todo = [*often, tmp_path / "killed"]
    for name in HOOKS:
        kill(forked(*todo), home / name / "seed-0", draw.randint(2, SHORT // 2))
        todo = ["resume", home]
    last = forked(*todo)
    assert last.wait(240) == 0, last.communicate()
    for name, (_, held) in HOOKS.items():
        expected = outcome(tmp_path / "whole" / "tiny" / name / "seed-0")
        state = expected["models"][f"last-{SHORT}.safetensors"]
        assert any(len(state[key]) for key in state if key.startswith(held)), name
        assert outcome(home / name / "seed-0") == expected, name


@pytest.mark.timeout(600)
def test_a_kill_changes_nothing_of_the_entries_that_stay_at_sites(tmp_path, kill, draw) -> None:
    """FedBN on a network with batch normalisation, by `federate`, which resumes by itself."""

    def begun(folder: Path) -> warm.Forked:
        return warm.Forked(train_fedbn, folder, MANY, log=tmp_path / "log")

    assert begun(tmp_path / "whole").wait(240) == 0
    killed = tmp_path / "killed"
    kill(begun(killed), killed, draw.randint(2, MANY // 4))
    assert lines(killed) < MANY
    assert begun(killed).wait(240) == 0
    expected = outcome(tmp_path / "whole")
    state = expected["models"][f"last-{MANY}.safetensors"]
    own = [state[key] for key in state if key.startswith("kept.") and key.endswith("entries")]
    assert len(set(own)) == len(own) > 1
    assert outcome(killed) == expected
