"""Personal models of whole runs: killed and resumed, tested, predicted with, exported, and lost."""

import json
import random
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests_tiny import TINY
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, Training, federate, read_study, run_study
from autofedavg.core.seeds import Seeds
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.run import RunLoop
from autofedavg.federation.port import Federation
from autofedavg.methods import METHODS
from folders import model_file
from toy import METRIC, DirectFleet, toy_problem
from trained_models import dice, scores

NAMES = ("apfl", "ditto", "fedavg-ft", "fedbn", "l2gd", "pfedme")
SITES = ("I", "II", "III")
DITTO = f"""{TINY.partition("[[run]]")[0].replace('baseline = "fedavg"', "")}
[[run]]
name = "ditto"
method = {{ name = "ditto" }}
"""
ROUNDS = 60


def lines(folder: Path) -> list[dict]:
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tensors(path: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def outcome(folder: Path) -> dict:
    """The last state, with what the sites keep; the best personal models; the scores."""
    personal = [model_file(folder, f"best-personal-{site}", "safetensors") for site in SITES]
    rounds = ("t", "loss", "validation", "validation_local", "validation_personal")
    return {
        "state": tensors(folder / "checkpoints" / f"last-{ROUNDS}.safetensors"),
        "models": {path.name: tensors(path) for path in personal},
        "scores": (folder / "scores.csv").read_bytes(),
        "rounds": [{key: line[key] for key in rounds} for line in lines(folder)],
    }


@pytest.mark.timeout(600)
def test_kills_change_nothing(tmp_path: Path, command, start) -> None:
    study = tmp_path / "ditto.toml"
    study.write_text(DITTO)
    often = ["run", study, "--set", f"rounds={ROUNDS}", "--out"]
    done = command(*often, tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    seed = random.SystemRandom().randrange(2**32)
    print(f"moments drawn with seed {seed}")
    draw = random.Random(seed)
    folder = tmp_path / "killed" / "tiny" / "ditto" / "seed-0"
    for _ in range(2):
        before = len(lines(folder))
        process = start(*([*often, tmp_path / "killed"] if not before else ["resume", folder]))
        while _count(folder) < before + draw.randint(1, 2) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.15))
        assert process.poll() is None, process.communicate()
        process.kill()
        process.wait()
    assert json.loads((folder / "status.json").read_text())["state"] == "running"
    last = command("resume", folder)
    assert last.returncode == 0, last.stderr
    expected = outcome(tmp_path / "whole" / "tiny" / "ditto" / "seed-0")
    assert any(name.startswith("kept.") for name in expected["state"])
    assert outcome(folder) == expected


def _count(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A Ditto run with the best models tested, and one with the last."""
    home = tmp_path_factory.mktemp("ditto")
    (home / "ditto.toml").write_text(DITTO)
    found = {}
    for select in ("best", "last"):
        study = read_study(home / "ditto.toml", [f'select="{select}"'])
        found[select] = run_study(study, home / select) / "ditto" / "seed-0"
    return found


@pytest.mark.parametrize("select", ["best", "last"])
def test_every_personal_model_is_tested_at_its_own_site_alone(runs, select) -> None:
    rows = RunFolder(runs[select]).scores()
    assert {row.model for row in rows} >= {f"personal-{site}" for site in SITES}
    for site in SITES:
        own = {(row.site, row.case) for row in rows if row.model == f"personal-{site}"}
        assert own == {(r.site, r.case) for r in rows if r.model == "global" and r.site == site}
    assert {row.split for row in rows} == {"test"}


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_personal_models_file_predicts_as_it_was_scored(say, runs, tmp_path, select) -> None:
    run = runs[select]
    volumes = read_study(run.parents[3] / "ditto.toml").runs[0].task.folder()
    measured = {c: v for (c, metric), v in scores(run, "personal-II").items() if metric == "dice"}
    images = [volumes / f"{case}_image.nii.gz" for case in measured]
    out = tmp_path / "out"
    code, _, err = say("predict", run, *images, "--out", out, "--model", "personal-II")
    assert code == 0, err
    listed = json.loads((out / "predictions.json").read_text())["cases"]
    for entry, image in zip(listed, images, strict=True):
        label = Path(str(image).replace("image", "label"))
        found, true = (
            np.asanyarray(nibabel.load(p).dataobj) == 1 for p in (out / entry["file"], label)
        )
        assert dice(found, true) == measured[entry["case"].removesuffix("_image")]
    own, shared = _saved(run, select, "personal-II"), _saved(run, select, "global")
    assert any(not torch.equal(own[name], shared[name]) for name in own)


def _saved(run: Path, select: str, model: str) -> dict[str, torch.Tensor]:
    kind = {"best": "best", "last": "final"}[select]
    return load_file(model_file(run, f"{kind}-{model}", "safetensors"))


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_personal_model_is_exported(say, runs, tmp_path, select) -> None:
    out = tmp_path / "out"
    code, _, err = say("export-model", runs[select], "--out", out, "--model", "personal-III")
    assert code == 0, err
    code, _, err = say("export-model", runs[select], "--out", out, "--model", "personal-IV")
    assert code == 1
    assert "did you mean personal-I" in err


# --- every personal method, trained from Python -----------------------------------------------

T = 4


def loader(seed: int, *, shuffle: bool = False) -> DataLoader:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(24, 4, generator=draw)
    return DataLoader(TensorDataset(x, (x[:, 0] > seed * 0.1).long()), 6, shuffle=shuffle)


def train(out: Path, method, *, validation: bool = True, **how):
    sites = {
        name: LoaderSite(
            loader(n, shuffle=True), loader(n + 5) if validation else None, loader(n + 9)
        )
        for n, name in enumerate("AB")
    }
    return federate(
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)),
        lambda network, batch: cross_entropy(network(batch[0]), batch[1]),
        sites,
        lambda network, batch: network(batch[0]).softmax(1)[torch.arange(6), batch[1]].double(),
        method=method,
        rounds=T,
        training=Training(epochs=1, learning_rate=0.03),
        out=out,
        machine=Machine(workers=1),
        **how,
    )


def values(out: Path, model: str) -> list[float]:
    return [row.value for row in RunFolder(out).scores() if row.model == model]


@pytest.mark.parametrize("name", NAMES)
def test_without_validation_cases_the_last_personal_models_are_the_same(tmp_path, name) -> None:
    method = METHODS[name]()
    train(tmp_path / "with", method, select="last")
    result = train(tmp_path / "without", method, validation=False, select="last")
    for model in ("global", "personal-A", "personal-B"):
        assert values(tmp_path / "with", model) == values(tmp_path / "without", model)
        assert len(values(tmp_path / "with", model)) == (48 if model == "global" else 24)
    assert "validation_personal" not in result.rounds[-1]
    for site in "AB":
        one, two = (
            tensors(model_file(tmp_path / which, f"final-personal-{site}", "safetensors"))
            for which in ("with", "without")
        )
        assert one == two


@pytest.mark.parametrize("name", NAMES)
def test_the_best_personal_models_are_chosen_by_their_own_validation_scores(tmp_path, name) -> None:
    result = train(tmp_path, METHODS[name]())
    for site in "AB":
        seen = [line["validation_personal"][site] for line in result.rounds]
        facts = json.loads(model_file(tmp_path, f"best-personal-{site}").read_text())
        assert facts["score"] == max(seen)
        assert facts["t"] == 1 + seen.index(max(seen))
        assert len(values(tmp_path, f"personal-{site}")) == 24


@pytest.mark.parametrize("remote", [False, True])
def test_a_site_that_lost_all_it_kept_has_another_best_model(tmp_path, remote) -> None:
    """Its best model is gone with the rest: one of the later rounds is tested, and no hole left."""
    problem = toy_problem(3)
    transport = DirectFleet(problem)

    def forget(verb, site, message):
        if (verb, site, message.facts.get("t")) == ("local_train", "B", T) and message.facts[
            "kept"
        ]:
            transport.clients["B"].client_state.kept.states.clear()

    transport.intercept = forget
    federation = Federation(transport, metric=METRIC, remote=remote)
    w0, layout = problem.initial(Seeds(7))
    folder = RunFolder.create(tmp_path / "run", "", {})
    RunLoop(METHODS["ditto"](), Rounds(rounds=T), federation, layout, METRIC, folder).run(w0)
    events = lines(folder.path)[-1]["events"]
    assert [(e["site"], e["what"]) for e in events] == [("B", "restarted"), ("B", "resent")]
    rows = [row for row in folder.scores() if row.model.startswith("personal-")]
    assert {row.model for row in rows} == {f"personal-{site}" for site in "ABC"}
    written = [name for name in folder.checkpoints.models() if "personal" in name]
    assert bool(written) is not remote
    if not remote:
        assert json.loads(model_file(folder.path, "best-personal-B").read_text())["t"] == T
