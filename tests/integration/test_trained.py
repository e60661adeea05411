"""A trained model is found in its run folder, and what is not there is named."""

import pytest
import torch

from autofedavg.core.errors import RunError
from autofedavg.inference.load import load_trained
from folders import model_file


def test_the_global_model_has_the_tensors_of_its_checkpoint(tiny_trained):
    trained = load_trained(tiny_trained / "fedavg" / "seed-0")
    saved = trained.folder.load("best-global").tensors
    own = trained.network.state_dict()
    assert trained.name == "best-global"
    assert not trained.network.training
    assert all(torch.equal(own[key], saved[key]) for key in saved)
    assert len(trained.facts["sha256"]) == 64


def test_a_sites_own_model_and_a_file_can_be_named(tiny_trained):
    run = tiny_trained / "fedavg" / "seed-0"
    assert load_trained(run, "local-I").name == "best-local-I"
    file = model_file(run, "best-local-I", "safetensors")
    assert "@" in file.name
    assert load_trained(file).name == "best-local-I"


@pytest.mark.parametrize(
    ("place", "model", "text"),
    [
        ("fedavg/seed-0", "local-X", "no model 'local-X'.*did you mean local-I"),
        ("local-only/seed-0", "global", "no model 'global' in this run"),
        (".", "global", "3 runs below this folder.*name one of them"),
        ("nowhere", "global", "no such folder"),
        ("fedavg/seed-0/scores.csv", "global", "no model of a run folder"),
    ],
)
def test_what_is_not_there_is_named(tiny_trained, place, model, text):
    with pytest.raises(RunError, match=text):
        load_trained(tiny_trained / place, model)
