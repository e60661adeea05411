"""Sec. 4.2.1 and 4.3: what the committed studies of Tables 2 and 3 run with."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from monai.data.utils import dense_patch_slices
from monai.inferers.utils import _get_scan_interval

from autofedavg.studies.study_file import read_study
from autofedavg.tasks.archives.covid import Covid
from autofedavg.tasks.archives.pancreas import Pancreas
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.segmentation import network
from autofedavg.tasks.lists.task import Datalist

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"
ROWS = [
    "Local only", "FedAvg", "FedAvg - even", "FedProx", "Auto-FedAvg-L-Softmax",
    "Auto-FedAvg-L-Dirichlet", "Auto-FedAvg-N-Softmax", "Auto-FedAvg-N-Dirichlet",
    "Auto-FedAvg-N-Dirichlet*",
]  # fmt: skip


@pytest.fixture(scope="module")
def covid():
    return read_study("table2-covid")


@pytest.fixture(scope="module")
def pancreas():
    return read_study("table3-pancreas")


@pytest.mark.parametrize(
    ("how", "stride"),
    [(Covid().pipeline, (64, 64, 8)), (Pancreas().pipeline, (48, 48, 48))],
    ids=["covid", "pancreas"],
)
def test_stride_of_the_sliding_window(how, stride) -> None:
    """MONAI works out the paper's strides from the window and an overlap of 0.75."""
    size = tuple(3 * n for n in how.roi)
    assert _get_scan_interval(size, how.roi, 3, (how.overlap,) * 3) == stride
    starts = {tuple(s.start for s in part) for part in dense_patch_slices(size, how.roi, stride)}
    assert {(0, 0, stride[2]), (0, stride[1], 0), (stride[0], 0, 0)} <= starts


@pytest.mark.parametrize(
    ("settings", "parameters", "millions", "tensors"),
    [
        ({"channels": (16, 32, 64, 128, 256), "residual_units": 2}, 4_806_481, 4.81, 63),
        ({"channels": (32, 64, 128, 256, 512)}, 7_912_874, 7.91, 26),
        ({"network": "basic-unet"}, 5_749_410, 5.75, 82),
    ],
    ids=["unet-16-residual", "unet-32-plain", "basic-unet"],
)
def test_size_of_the_3d_u_nets(settings, parameters, millions, tensors) -> None:
    net = network(Pipeline(roi=(32, 32, 32), **settings))
    counted = [tensor.numel() for tensor in net.parameters()]
    assert sum(counted) == parameters
    assert round(sum(counted) / 1e6, 2) == millions
    assert len(counted) == tensors
    assert not list(net.buffers())  # instance norm: nothing but weights to average


def test_the_networks_of_both_studies_are_the_default_basic_u_net() -> None:
    for task in (Covid(), Pancreas()):
        assert sum(p.numel() for p in task.network().parameters()) == 5_749_410


def test_rows_are_the_tables_rows_with_three_repeats(covid, pancreas) -> None:
    for study in (covid, pancreas):
        assert [run.label for run in study.runs] == ROWS
        assert study.seeds == (0, 1, 2)
        assert study.baseline == "fedavg"


def test_settings_of_the_covid_study(covid) -> None:
    assert "not the paper's hospitals" in covid.title
    for run in covid.runs:
        training, how = run.training, run.task.pipeline
        assert run.T == 300
        assert (training.iterations, training.epochs, training.batch_size) == (300, 0, 4)
        assert (training.optimiser, training.learning_rate) == ("adam", 1e-4)
        assert training.betas == (0.5, 0.99)
        assert (training.weight_decay, training.schedule) == (0.0, "constant")
        assert run.task.name == "covid"
        assert how.spacing == (0.8, 0.8, 5.0)
        assert how.roi == (256, 256, 32)
        assert how.window == (-1000.0, 500.0)
        assert (how.overlap, how.foreground, how.loss) == (0.75, 0.5, "dice")
        assert how.network == "basic-unet"


def test_settings_of_the_pancreas_study(pancreas) -> None:
    for run in pancreas.runs:
        training, how = run.training, run.task.pipeline
        assert run.T == 50
        assert (training.iterations, training.epochs, training.batch_size) == (300, 0, 16)
        assert (training.optimiser, training.learning_rate) == ("adam", 1e-3)
        assert training.betas == (0.5, 0.99)
        assert (training.weight_decay, training.schedule) == (0.0, "cosine")
        assert run.task.name == "pancreas"
        assert how.spacing == (1.0, 1.0, 1.0)
        assert how.roi == (192, 192, 192)
        assert how.window == (-87.0, 199.0)
        assert (how.overlap, how.foreground, how.loss) == (0.75, 0.5, "dice")
        assert how.crop


def test_methods_of_the_rows(covid, pancreas) -> None:
    for study, starred in ((covid, 10), (pancreas, 5)):
        by_label = {run.label: run.method for run in study.runs}
        assert by_label["FedAvg"].weights == "size"
        assert by_label["FedAvg - even"].weights == "even"
        assert by_label["FedProx"].mu == 0.001
        for label in ROWS[4:]:
            method = by_label[label]
            assert method.weights == ("layer" if "-L-" in label else "network")
            assert method.constraint == ("softmax" if "Softmax" in label else "dirichlet")
            assert method.t0 == (starred if label.endswith("*") else 1)
            if method.constraint == "dirichlet":
                assert method.beta0 == 6.0


def test_no_row_sets_what_only_the_task_should_say(covid, pancreas) -> None:
    """The paper's values of the pipeline are defaults with an origin, not the study's wish."""
    for study in (covid, pancreas):
        for path, _, origin, _ in study.runs[0].origins():
            if path.startswith("task."):
                assert path == "task.name" or origin != "study", path


def test_the_pipeline_for_hospitals_of_your_own_is_the_covid_pipeline() -> None:
    """docs/how-to/data.md writes it out for the task `datalist`."""
    page = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    task = tomllib.loads(block)["base"]["task"]
    how = Datalist.model_validate_json(json.dumps(task)).pipeline.pipeline()
    assert how.model_dump() == Covid().pipeline.model_dump()
