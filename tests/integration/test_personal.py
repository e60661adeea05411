"""Personal models of whole runs: tested, predicted with, exported, and lost."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests_tiny import TINY

from autofedavg import read_study, run_study
from autofedavg.core.seeds import Seeds
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.run import RunLoop
from autofedavg.federation.port import Federation
from autofedavg.methods import METHODS
from folders import model_file
from loader_runs import T, train
from toy import METRIC, DirectFleet, toy_problem
from trained_models import dice, scores

NAMES = ("apfl", "ditto", "fedavg-ft", "fedbn", "l2gd", "pfedme")
SITES = ("I", "II", "III")
DITTO = f"""{TINY.partition("[[run]]")[0].replace('baseline = "fedavg"', "")}
[[run]]
name = "ditto"
method = {{ name = "ditto" }}
"""


def tensors(path: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


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
    events = folder.rounds()[-1]["events"]
    assert [(e["site"], e["what"]) for e in events] == [("B", "restarted"), ("B", "resent")]
    rows = [row for row in folder.scores() if row.model.startswith("personal-")]
    assert {row.model for row in rows} == {f"personal-{site}" for site in "ABC"}
    written = [name for name in folder.checkpoints.models() if "personal" in name]
    assert bool(written) is not remote
    if not remote:
        assert json.loads(model_file(folder.path, "best-personal-B").read_text())["t"] == T
