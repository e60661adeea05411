"""A model exported through the command is the model, and its JSON says how to use it."""

import hashlib
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from autofedavg import __version__
from autofedavg.core.bank import Bank, Layout
from autofedavg.core.forms import Form, reshaped
from autofedavg.experiment.models import save_model
from autofedavg.inference import export, formats
from autofedavg.inference.load import load_trained
from autofedavg.tasks.cifar.network_input import MEAN, STD
from autofedavg.tasks.cifar.task import Cifar10
from autofedavg.tasks.imaging.pipeline import Pipeline
from folders import model_file
from models import datalist, run_folder, save
from toy import seeded

FILES = {"torchscript": "model.ts", "onnx": "model.onnx"}


def loaded(folder: Path, format: str):
    """The exported file as a function, by the means of whoever receives it."""
    path = folder / FILES[format]
    if format == "onnx":
        session = onnxruntime.InferenceSession(path)
        return lambda x: torch.from_numpy(session.run(["logits"], {"image": x.numpy()})[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(path)


def apart(one, two, shape) -> float:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return float((one(x) - two(x)).abs().max())


def read(folder: Path) -> dict:
    return json.loads((folder / "preprocessing.json").read_text())


@pytest.mark.parametrize("format", FILES)
def test_every_format_is_the_network_in_any_batch_and_size(say, tiny_trained, tmp_path, format):
    run, out = tiny_trained / "fedavg" / "seed-0", tmp_path / "out"
    code, told, talk = say("export-model", run, "--out", out, "--format", format)
    assert code == 0
    assert told.split() == [str(out / FILES[format]), str(out / "preprocessing.json")]
    assert sorted(p.name for p in out.iterdir()) == sorted([FILES[format], "preprocessing.json"])
    assert "was run on random input" in talk
    network, file = load_trained(run).network, loaded(out, format)
    for shape in ((1, 1, 16, 16, 8), (3, 1, 16, 16, 8), (2, 1, 20, 14, 26)):
        assert apart(network, file, shape) < 1e-5
    model = read(out)["model"]
    assert model["format"] == format
    assert model["file"] == FILES[format]
    assert model["sha256"] == hashlib.sha256((out / FILES[format]).read_bytes()).hexdigest()
    assert model["compared"]["verified"]
    assert model["compared"]["largest_difference"] < 1e-5
    assert model["compared"]["shapes"] == [[2, 1, 4, 4, 4], [1, 1, 16, 16, 8]]


def test_onnx_names_its_ports_and_its_opset_and_passes_the_checker(say, tiny_trained, tmp_path):
    say("export-model", tiny_trained / "fedavg", "--out", tmp_path, "--format", "onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    (taken,), (given,) = proto.graph.input, proto.graph.output
    recipe = read(tmp_path)
    assert (taken.name, given.name) == (recipe["input"]["name"], recipe["output"]["name"])
    assert taken.type.tensor_type.shape.dim[0].dim_param
    assert recipe["model"]["opset"] == proto.opset_import[0].version


def test_the_json_says_what_the_configuration_says(say, tiny_trained, tmp_path):
    run = tiny_trained / "n-dirichlet" / "seed-0"
    say("export-model", run, "--out", tmp_path)
    recipe, trained = read(tmp_path), load_trained(run)
    how: Pipeline = trained.config.task.pipeline
    steps = {step["step"]: step for step in recipe["steps"]}
    assert [*steps] == ["orientation", "spacing", "normalise", "round"]
    assert steps["orientation"]["to"] == "RAS"
    assert steps["spacing"]["mm"] == list(how.spacing)
    assert (steps["normalise"]["zero"], steps["normalise"]["one"]) == how.window
    assert recipe["input"]["shape"] == [None, 1, *how.roi]
    assert recipe["input"]["multiple_of"] == [2, 2, 2]
    assert recipe["windows"]["size"] == list(how.roi)
    assert recipe["windows"]["overlap"] == how.overlap
    assert recipe["output"]["classes"] == ["background", "foreground"]
    about = json.loads((run / "environment.json").read_text())
    facts = json.loads(model_file(run).read_text())
    origin = recipe["provenance"]
    assert origin["tensors_sha256"] == facts["sha256"]
    assert (origin["round"], origin["score"]) == (facts["t"], facts["score"])
    assert (origin["task"], origin["method"]) == ("synthetic", "auto-fedavg")
    assert (origin["run"], origin["checkpoint"]) == ("tiny/n-dirichlet/seed-0", "best-global")
    assert origin["data"] == about["data"]
    assert origin["trained_with"]["commit"] == about["commit"]
    assert origin["exported_with"]["versions"]["autofedavg"] == __version__


@pytest.mark.parametrize(
    ("change", "step", "expected"),
    [
        ({"crop": True}, "crop", {"keep": "above", "value": -200.0}),
        ({"crop": True, "normalise": "zscore"}, "crop", {"keep": "other than", "value": 0.0}),
        ({"normalise": "zscore"}, "normalise", {"how": "zscore", "clip": [-5.0, 5.0]}),
        ({"normalise": "percentiles"}, "normalise", {"percentiles": [0.5, 99.5]}),
        ({"spacing": "keep"}, "spacing", None),
        ({}, "crop", None),
    ],
)
def test_only_steps_that_are_taken_are_listed(say, tmp_path, change, step, expected):
    folder, network = run_folder(tmp_path / "run", datalist(tmp_path, **change))
    code, _, _ = say("export-model", save(folder, network), "--out", tmp_path / "out")
    recipe = read(tmp_path / "out")
    found = {entry["step"]: entry for entry in recipe["steps"]}.get(step)
    assert code == 0
    assert recipe["output"]["classes"] == ["background", "inner", "outer"]
    assert (found is None) == (expected is None)
    assert {key: found[key] for key in expected} == expected if expected else True
    cut = change.get("crop", False)
    assert recipe["back"]["cut_away"] == ("background" if cut else None)


def test_a_sites_own_model_is_another_one(say, tiny_trained, tmp_path):
    run = tiny_trained / "fedavg" / "seed-0"
    code, told, _ = say("export-model", run, "--out", tmp_path, "--model", "local-II", "--json")
    answer = json.loads(told)
    assert code == 0
    assert answer["files"] == ["model.ts", "preprocessing.json"]
    assert answer["folder"] == str(tmp_path)
    assert answer["compared"]["verified"]
    origin = read(tmp_path)["provenance"]
    assert (origin["checkpoint"], origin["site"]) == ("best-local-II", "II")
    assert apart(load_trained(run, "local-II").network, loaded(tmp_path, "torchscript"),
                 (1, 1, 16, 16, 8)) == 0  # fmt: skip
    assert apart(load_trained(run).network, loaded(tmp_path, "torchscript"),
                 (1, 1, 16, 16, 8)) > 0  # fmt: skip


PIPELINES = {
    "basic-unet": {"network": "basic-unet", "channels": [4, 4, 8, 8, 8, 4], "roi": [32, 16, 16]},
    "anisotropic": {"strides": [[2, 2, 1], [2, 2, 2]], "channels": [4, 8, 8], "residual_units": 1,
                    "roi": [16, 16, 2]},
    "flat": {"roi": [16, 24], "channels": [4, 8], "spacing": "keep"},
}  # fmt: skip


@pytest.mark.parametrize(("name", "format"), [
    pytest.param(name, format, marks=pytest.mark.slow)
    if format == "onnx" and name in ("basic-unet", "anisotropic") else (name, format)  # long
    for name in PIPELINES for format in FILES
])  # fmt: skip
def test_every_network_of_a_pipeline_can_be_exported(say, tmp_path, name, format):
    task = datalist(tmp_path, **PIPELINES[name])
    folder, network = run_folder(tmp_path / "run", {**task, "image_channels": 2})
    save(folder, network)
    code, _, talk = say("export-model", folder.path, "--out", tmp_path, "--format", format)
    assert code == 0, talk
    recipe = read(tmp_path)
    large = [2 * size for size in recipe["input"]["shape"][2:]]
    assert apart(network.eval(), loaded(tmp_path, format), (3, 2, *large)) < 1e-5


def cifar(home: Path, method: str) -> tuple:
    task = {"name": "cifar10", "root": str(home / "nowhere"), "clients": 3}
    return run_folder(home / "run", task, {"name": method})


@pytest.mark.parametrize("format", FILES)
def test_cifar_10_is_exported_without_its_data(say, tmp_path, format):
    folder, network = cifar(tmp_path, "fedavg")
    code, _, _ = say("export-model", save(folder, network), "--out", tmp_path, "--format", format)
    assert code == 0
    assert apart(network.eval(), loaded(tmp_path, format), (5, 3, 32, 32)) < 1e-5
    recipe = read(tmp_path)
    (step,) = recipe["steps"]
    assert (step["mean"], step["std"]) == (list(MEAN), list(STD))
    assert recipe["input"]["multiple_of"] is None
    assert recipe["output"]["classes"][3] == "cat"


@pytest.mark.parametrize("format", FILES)
def test_an_ensemble_becomes_one_network(say, tmp_path, format):
    folder, network = cifar(tmp_path, "ensemble")
    build, layout = Cifar10().network, Layout.of(network)
    bank = Bank.gather({site: layout.read(seeded(build, k)) for k, site in enumerate("ABC")})
    save_model(folder, "best-global", bank, layout, {"t": 1, "score": 0.5})
    code, _, talk = say("export-model", folder.path, "--out", tmp_path, "--format", format)
    assert code == 0, talk
    file, x = loaded(tmp_path, format), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        alone = [seeded(build, k).eval()(x).softmax(dim=1) for k in range(3)]
        torch.testing.assert_close(file(x).softmax(dim=1), torch.stack(alone).mean(dim=0))
    assert read(tmp_path)["provenance"]["ensemble_of"] == ["A", "B", "C"]


def test_a_grown_network_of_fedma_keeps_its_form(say, tmp_path):
    folder, network = cifar(tmp_path, "fedma")
    form = Form((36, 70, 128, 140, 256, 256, 520, 512, 10), frozen=3)
    grown = reshaped(network, form)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in grown.parameters():
            parameter.normal_(std=0.05, generator=draw)
    layout = Layout.of(network)
    w = replace(layout.formed(form).model(grown.state_dict()), form=form)
    save_model(folder, "best-global", w, layout, {"t": 9, "score": 0.5})
    code, _, talk = say("export-model", folder.path, "--out", tmp_path)
    assert code == 0, talk
    assert apart(grown.eval(), loaded(tmp_path, "torchscript"), (2, 3, 32, 32)) == 0
    assert read(tmp_path)["provenance"]["form"]["widths"][1] == 70


def test_an_export_that_is_there_stays_unless_told_otherwise(say, tiny_trained, tmp_path):
    run = tiny_trained / "fedavg" / "seed-0"
    say("export-model", run, "--out", tmp_path, "--format", "onnx")
    (tmp_path / "notes.txt").write_text("mine")
    before = (tmp_path / "model.onnx").read_bytes()
    code, told, talk = say("export-model", run, "--out", tmp_path)
    assert code == 2
    assert not told
    assert "is there already" in talk
    assert "--overwrite" in talk
    assert (tmp_path / "model.onnx").read_bytes() == before
    code, _, _ = say("export-model", run, "--out", tmp_path, "--overwrite")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert code == 0
    assert names == ["model.ts", "notes.txt", "preprocessing.json"]  # no model of another recipe


def test_a_folders_own_documents_are_no_export(say, tiny_trained, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("mine")
    bundle = ("--out", tmp_path, "--format", "bundle")
    code, _, talk = say("export-model", tiny_trained / "fedavg", *bundle)
    assert code == 2
    assert "docs/README.md is there already" in talk
    assert say("export-model", tiny_trained / "fedavg", "--out", tmp_path, "--overwrite")[0] == 0
    assert (tmp_path / "docs" / "README.md").read_text() == "mine"


@pytest.mark.parametrize("spoil", [1e-2, float("nan")])
def test_a_file_that_differs_is_refused_and_not_kept(
    say, tiny_trained, tmp_path, monkeypatch, spoil
):
    honest = formats.FORMATS["torchscript"]

    def write(network, ports, path):
        class Other(torch.nn.Module):
            def forward(self, image):
                return network(image) + spoil

        return honest.write(Other(), ports, path)

    monkeypatch.setitem(
        formats.FORMATS, "torchscript", formats.Format(honest.file, write, honest.load)
    )
    out = tmp_path / "out"
    code, told, talk = say("export-model", tiny_trained / "fedavg", "--out", out)
    assert code == 1
    assert not told
    assert "model.ts differ from the network's by" in talk
    assert "not kept" in talk
    assert not out.exists()


def test_a_network_that_no_exporter_can_follow_is_named(say, tiny_trained, tmp_path, monkeypatch):
    def write(network, ports, path):
        raise RuntimeError("data-dependent branch\nand a long story")

    honest = formats.FORMATS["onnx"]
    monkeypatch.setitem(formats.FORMATS, "onnx", formats.Format(honest.file, write, honest.load))
    arguments = ("--out", tmp_path / "out", "--format", "onnx")
    code, _, talk = say("export-model", tiny_trained / "fedavg", *arguments)
    assert code == 1
    assert "cannot be written as onnx (data-dependent branch)" in talk
    assert "try another --format" in talk


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_onnx_asks_for_its_extra(say, tiny_trained, tmp_path, monkeypatch, package):
    monkeypatch.setattr(formats, "import_module", without(package))
    out = tmp_path / "out"
    code, _, talk = say("export-model", tiny_trained / "fedavg", "--out", out, "--format", "onnx")
    assert code == 2
    assert f"{package} is not installed; pip install 'autofedavg[onnx]'" in talk
    assert not out.exists()


def test_without_onnxruntime_an_onnx_file_is_not_verified_and_says_so(
    say, tiny_trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(formats, "import_module", without("onnxruntime"))
    code, _, talk = say(
        "export-model", tiny_trained / "fedavg", "--out", tmp_path, "--format", "onnx"
    )
    assert code == 0
    assert "model.onnx is not verified: onnxruntime is not installed" in talk
    assert read(tmp_path)["model"]["compared"]["verified"] is False


def without(package: str):
    """`import_module` where a package is not installed."""

    def lacking(name: str):
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return __import__(name)

    return lacking


def test_a_task_that_does_not_say_how_inputs_are_made_is_named(
    say, tiny_trained, tmp_path, monkeypatch
):
    from autofedavg.tasks.imaging.task import SegmentationTask

    monkeypatch.delattr(SegmentationTask, "preprocessing")
    code, _, talk = say("export-model", tiny_trained / "fedavg", "--out", tmp_path)
    assert code == 2
    assert "task Synthetic: this task does not describe how its inputs are made" in talk


@pytest.mark.parametrize(
    ("place", "more", "text"),
    [
        ("local-only", (), "there is no model 'global' in this run"),
        ("fedavg", ("--model", "local-IV"), "did you mean local-I"),
        (".", (), "3 runs below this folder"),
    ],
)
def test_a_model_that_is_not_there_is_named(say, tiny_trained, tmp_path, place, more, text):
    code, _, talk = say("export-model", tiny_trained / place, "--out", tmp_path / "out", *more)
    assert code == 1
    assert text in talk
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_told(say, tiny_trained, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, talk = say("export-model", tiny_trained / "fedavg", "--out", tmp_path / "file" / "out")
    assert code == 1
    assert "cannot write: Not a directory" in talk
    assert "--out" in talk


def test_large_windows_are_compared_in_part():
    ports = formats.Ports("image", "logits", 1, (192, 192, 192), (16, 16, 16))
    batch, channels, *sizes = ports.large()
    assert (batch, channels) == (1, 1)
    assert np.prod(sizes) <= formats.LARGEST
    assert all(size % 16 == 0 and size >= 32 for size in sizes)
    assert formats.Ports("i", "o", 1, (96, 96, 48), (16, 16, 16)).large() == (1, 1, 96, 96, 48)


def test_the_same_model_is_compared_by_the_same_numbers(tiny_trained):
    network = load_trained(tiny_trained / "fedavg").network
    ports = formats.Ports("image", "logits", 1, (16, 16, 8), (2, 2, 2))
    one, two = (export.largest_difference(lambda x: x * 0, network, ports) for _ in range(2))
    assert one == two
