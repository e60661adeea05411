"""A run that dies at any write, or meets a full disk there, goes on to the same bits."""

import errno
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import AutoFedAvg, LoaderSite, LocalOnly, Machine, Training, federate, resume
from autofedavg.errors import ConfigError, RunError
from autofedavg.experiment import store
from autofedavg.methods.ensemble import EnsembleMethod
from autofedavg.methods.fedma import FedMA
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table

ROUNDS = 3
METHODS = {
    "auto-fedavg": AutoFedAvg(S=2, t0=2),
    "ensemble": EnsembleMethod(),
    "fedma": FedMA(),
    "local-only": LocalOnly(),
}


class Died(BaseException):
    """The process is gone; nothing may catch this."""


def loader(seed: int, shuffle: bool) -> DataLoader:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 4, generator=draw)
    return DataLoader(TensorDataset(x, (x[:, 0] > seed * 0.1).long()), 6, shuffle=shuffle)


def norm_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


def plain_chain() -> torch.nn.Module:
    layers = [torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(3, 2))


def train(
    out: Path, method: str, seed: int = 0, select: Literal["best", "last"] = "best"
) -> dict[str, bytes]:
    sites = {name: LoaderSite(loader(n, True), loader(n + 5, False)) for n, name in enumerate("AB")}
    federate(
        plain_chain if method == "fedma" else norm_net,
        lambda network, batch: cross_entropy(network(batch[0]), batch[1]),
        sites,
        lambda network, batch: (network(batch[0]).argmax(1) == batch[1]).double(),
        method=METHODS[method],
        rounds=ROUNDS,
        training=Training(epochs=1, learning_rate=0.05),
        seed=seed,
        select=select,
        out=out,
        machine=Machine(workers=1),
    )
    files = sorted((out / "checkpoints").glob("*.safetensors"))
    return {
        f"{file.stem}/{key}": tensor.numpy().tobytes()
        for file in files
        for key, tensor in load_file(file).items()
    }


@pytest.fixture
def fail_at(monkeypatch):
    """Makes the n-th write of a run fail; returns how many writes there were."""
    original = store.write_atomically

    def arrange(n: int, failure: BaseException) -> list[int]:
        count = [0]

        def write(path: Path, content: bytes) -> None:
            count[0] += 1
            if count[0] == n:
                path.with_name(path.name + ".part").write_bytes(content[: len(content) // 2])
                raise failure
            original(path, content)

        monkeypatch.setattr(store, "write_atomically", write)
        return count

    return arrange


@pytest.mark.parametrize(
    ("method", "select"), [*((method, "best") for method in METHODS), ("auto-fedavg", "last")]
)
def test_death_at_every_write(tmp_path, monkeypatch, fail_at, method, select) -> None:
    never = fail_at(0, Died())
    expected = train(tmp_path / "whole", method, select=select)
    writes = never[0]
    monkeypatch.undo()
    assert writes > 15
    for n in range(1, writes + 1):
        out = tmp_path / f"died-{n}"
        fail_at(n, Died())
        with pytest.raises(Died):
            train(out, method, select=select)
        monkeypatch.undo()
        assert train(out, method, select=select) == expected, (
            f"death at write {n} changed the result"
        )


def test_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch, fail_at) -> None:
    expected = train(tmp_path / "whole", "auto-fedavg")
    out = tmp_path / "full"
    fail_at(12, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(RunError, match=r"No space left on device; make room, then `autofedavg res"):
        train(out, "auto-fedavg")
    assert store.RunFolder(out).status() == "failed"
    monkeypatch.undo()
    assert train(out, "auto-fedavg") == expected


@pytest.mark.parametrize("damage", ["flipped", "cut", "json", "gone"])
def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, damage) -> None:
    expected = train(tmp_path / "whole", "auto-fedavg")
    out = tmp_path / "damaged"
    train(out, "auto-fedavg")
    newest = out / "checkpoints" / f"last-{ROUNDS}.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[-3] ^= 255
        newest.write_bytes(content)
    elif damage == "cut":
        newest.write_bytes(content[:50])
    elif damage == "json":
        newest.with_suffix(".json").write_text("{")
    else:
        newest.unlink()
    assert train(out, "auto-fedavg") == expected
    assert f"last-{ROUNDS}" in caplog.text
    assert "using the checkpoint before it" in caplog.text


def test_other_settings_in_an_old_folder_are_refused(tmp_path) -> None:
    train(tmp_path, "auto-fedavg")
    with pytest.raises(RunError, match="holds a run with other settings; write elsewhere"):
        train(tmp_path, "local-only")


def test_another_seed_in_an_old_folder_is_refused(tmp_path) -> None:
    train(tmp_path, "auto-fedavg")
    with pytest.raises(RunError, match="this run folder holds seed 0, not 3; write elsewhere"):
        train(tmp_path, "auto-fedavg", seed=3)


def test_a_method_that_needs_a_holdout_says_so_at_once(tmp_path) -> None:
    METHODS["holdout"] = AutoFedAvg(learn_on="holdout")
    with pytest.raises(ConfigError, match="a site has no holdout loader; add holdout= to every"):
        train(tmp_path, "holdout")
    del METHODS["holdout"]


def test_two_processes_cannot_share_a_run_folder(tmp_path) -> None:
    train(tmp_path, "auto-fedavg")
    folder = store.RunFolder(tmp_path)
    with (
        folder.lock(),
        pytest.raises(RunError, match="another process is working in this run folder"),
    ):
        train(tmp_path, "auto-fedavg")


def test_a_folder_of_federate_can_be_reported_but_not_resumed_by_name(tmp_path) -> None:
    train(tmp_path / "mine", "auto-fedavg")
    results = read_results([tmp_path / "mine"])
    assert [row.name for row in results.rows] == ["mine"]
    assert scores_table(results).rows[0][1][2].value is not None
    with pytest.raises(RunError, match=r"begun from Python .*call federate again"):
        resume(tmp_path / "mine")
