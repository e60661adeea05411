"""A run that dies at any write, or meets a full disk there, goes on to the same bits."""

import errno
import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import AutoFedAvg, LoaderSite, LocalOnly, Machine, Training, federate, resume
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.experiment import folder_writer as store
from autofedavg.experiment.selection import Best
from autofedavg.methods.ensemble import EnsembleMethod
from autofedavg.methods.fedma.method import FedMA
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
    """Makes a run fail at its n-th write, or right after it; returns how many writes there were."""
    original = store.write_atomically

    def arrange(n: int, failure: BaseException, *, after: bool = False) -> list[int]:
        count = [0]

        def write(path: Path, content: bytes) -> None:
            count[0] += 1
            if count[0] == n and not after:
                part = path.with_name(f"{path.name}.0123abcd.part")
                part.write_bytes(content[: len(content) // 2])
                raise failure
            original(path, content)
            if count[0] == n:
                raise failure

        monkeypatch.setattr(store, "write_atomically", write)
        return count

    return arrange


@pytest.mark.parametrize("after", [False, True], ids=["at", "after"])
@pytest.mark.parametrize(
    ("method", "select"), [*((method, "best") for method in METHODS), ("auto-fedavg", "last")]
)
def test_death_at_every_write(tmp_path, monkeypatch, fail_at, method, select, after) -> None:
    """After a write: between the renames of a checkpoint's two files, or before the old ones go."""
    never = fail_at(0, Died())
    expected = train(tmp_path / "whole", method, select=select)
    writes = never[0]
    monkeypatch.undo()
    assert writes > 15
    for n in range(1, writes + 1):
        out = tmp_path / f"died-{n}"
        fail_at(n, Died(), after=after)
        with pytest.raises(Died):
            train(out, method, select=select)
        monkeypatch.undo()
        assert train(out, method, select=select) == expected, (
            f"death at write {n} changed the result"
        )
        assert not list(out.rglob("*.part"))


def test_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch, fail_at) -> None:
    expected = train(tmp_path / "whole", "auto-fedavg")
    out = tmp_path / "full"
    fail_at(12, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(RunError, match=r"No space left on device; make room, then `autofedavg res"):
        train(out, "auto-fedavg")
    assert store.RunFolder(out).status() == "failed"
    monkeypatch.undo()
    assert train(out, "auto-fedavg") == expected


def files(out: Path, ending: str = "json") -> set[str]:
    return {path.stem for path in (out / "checkpoints").glob(f"*.{ending}")}


def test_a_model_holds_from_the_checkpoint_on_that_names_it(tmp_path) -> None:
    """Whatever happens between the renames, there is one whole best model: the old or the new."""
    folder = store.RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()

    def keep(t: int) -> None:
        folder.save(f"best-global@{t}", {"w": torch.full((2,), float(t))}, {"t": t})

    def state(t: int, best: int) -> None:
        folder.save_round(
            t, {"w.values": torch.ones(1)}, {"models": {"best-global": f"best-global@{best}"}}
        )

    assert not folder.has("best-global")
    keep(1)
    state(1, 1)
    (tmp_path / "checkpoints" / "best-global@2.safetensors").write_bytes(b"whole, without its JSON")
    assert folder.load("best-global").facts["t"] == 1
    keep(2)  # the JSON too, but no checkpoint yet
    assert folder.load("best-global").facts["t"] == 1
    folder.tidy()  # the run goes on from round 1: the second try may be another one
    assert files(tmp_path) == files(tmp_path, "safetensors") == {"last-1", "best-global@1"}
    state(2, 1)
    keep(3)
    state(3, 3)
    assert folder.load("best-global").facts["t"] == 3
    assert files(tmp_path) == {"last-2", "last-3", "best-global@1", "best-global@3"}
    (tmp_path / "checkpoints" / "last-3.json").write_text("{")  # to fall back is possible, too
    assert folder.load("best-global").facts["t"] == 1
    state(4, 3)
    state(5, 3)
    assert files(tmp_path) == {"last-4", "last-5", "best-global@3"}
    for last in (tmp_path / "checkpoints").glob("last-*"):
        last.unlink()
    assert folder.load("best-global").facts["t"] == 3  # nobody says otherwise


def test_tensors_of_an_old_round_go_although_their_json_went_before(tmp_path) -> None:
    """A kill between the removals of a checkpoint's two files leaves the second."""
    folder = store.RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for t in (1, 2, 3):
        folder.save_round(t, {"w.values": torch.ones(1)}, {"models": {}})
        (tmp_path / "checkpoints" / "last-1.json").unlink(missing_ok=True)
    (tmp_path / "checkpoints" / "last-4.safetensors").write_bytes(b"its JSON comes next")
    folder.tidy()
    assert files(tmp_path, "safetensors") == {"last-2", "last-3", "last-4"}


def test_a_model_of_a_discarded_history_is_not_tested(tmp_path, monkeypatch) -> None:
    """With a quorum, a second try of a round need not be as good as the first, which is gone."""
    original = store.RunFolder.save_round

    def dies(folder, t, tensors, facts) -> None:
        if t == 2:
            raise Died
        original(folder, t, tensors, facts)

    monkeypatch.setattr(store.RunFolder, "save_round", dies)
    monkeypatch.setattr(Best, "beaten_by", lambda self, mean, sites: True)
    with pytest.raises(Died):
        train(tmp_path, "auto-fedavg")
    assert "best-global@2" in files(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(Best, "beaten_by", lambda self, mean, sites: self.score is None)
    train(tmp_path, "auto-fedavg")
    folder = store.RunFolder(tmp_path)
    assert folder.load("best-global").facts["t"] == 1
    assert "best-global@2" not in files(tmp_path)
    tested = {row.model for row in folder.scores()}
    assert {"global", "global-last"} <= tested


def as_before(out: Path) -> None:
    """A run folder as version 0.1 wrote it: models without a round, named by no checkpoint."""
    models = out / "checkpoints"
    for last in models.glob("last-*.json"):
        facts = json.loads(last.read_text())
        named = facts.pop("models")
        last.write_text(json.dumps(facts))
    for name, stem in named.items():
        for ending in ("json", "safetensors"):
            (models / f"{stem}.{ending}").rename(models / f"{name}.{ending}")
    for left in models.glob("*@*"):
        left.unlink()


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_folder_of_an_earlier_version_goes_on(tmp_path, select) -> None:
    expected = train(tmp_path / "whole", "auto-fedavg", select=select)
    out = tmp_path / "old"
    train(out, "auto-fedavg", select=select)
    scores = (out / "scores.csv").read_bytes()
    as_before(out)
    (out / "scores.csv").unlink()
    train(out, "auto-fedavg", select=select)  # all rounds are there: it is tested again
    assert (out / "scores.csv").read_bytes() == scores
    for last in (out / "checkpoints").glob(f"last-{ROUNDS}.*"):
        last.unlink()
    train(out, "auto-fedavg", select=select)  # the last round is run again, and writes new names
    assert (out / "scores.csv").read_bytes() == scores
    kind = {"best": "best", "last": "final"}[select]
    held = store.RunFolder(out).load(f"{kind}-global")
    name = f"{kind}-global@{held.facts['t']}"
    assert {key: tensor.numpy().tobytes() for key, tensor in held.tensors.items()} == {
        key.partition("/")[2]: value for key, value in expected.items() if key.startswith(name)
    }


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
    with pytest.raises(RunError, match="holds a run with other settings; choose another folder"):
        train(tmp_path, "local-only")


def test_another_seed_in_an_old_folder_is_refused(tmp_path) -> None:
    train(tmp_path, "auto-fedavg")
    with pytest.raises(
        RunError, match="this run folder holds seed 0, not 3; choose another folder"
    ):
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
    with pytest.raises(RunError, match=r"started by `federate`, .*call `federate` again"):
        resume(tmp_path / "mine")
