"""Example cases of finished studies: what they show is what was scored, or a note says why not."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autofedavg import cli, read_study
from autofedavg.core.errors import DataError, RunError
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.inference.load import load_trained
from autofedavg.report import examples as report
from autofedavg.report.examples import example_cases
from autofedavg.report.picks import GAIN, LOSS, MEDIAN, ONLY
from autofedavg.report.read import read_results
from autofedavg.tasks.archives.covid import Covid
from autofedavg.tasks.imaging.cache import data_home
from autofedavg.tasks.imaging.panels import COLOURS, FOUND, LABEL, panels, shades, view
from autofedavg.tasks.imaging.preparation import load
from autofedavg.tasks.synthetic.task import Synthetic
from folders import model_file
from lookalikes import cifar10_binary
from lookalikes_ct import write_covid

ROOT = Path(__file__).parents[2]
METHOD = "Auto-FedAvg-N-Dirichlet"


def scores(folder: Path) -> dict[tuple[str, str], float]:
    return {
        (row.site, row.case): row.value
        for row in RunFolder(folder).scores()
        if (row.model, row.metric) == ("global", "dice")
    }


def pixels(panel) -> np.ndarray:
    with Image.open(io.BytesIO(panel.png)) as opened:
        return np.array(opened.convert("RGB"))


def coloured(panel, colour) -> bool:
    return bool((pixels(panel) == colour).all(axis=2).any())


@pytest.fixture(scope="module")
def tiny_examples(tiny_trained):
    told = []
    made = example_cases(read_results([tiny_trained]), progress=lambda *what: told.append(what))
    return made, told


def test_every_site_is_shown_with_the_scores_on_disk(tiny_trained, tiny_examples) -> None:
    made, told = tiny_examples
    assert (made.baseline, made.method) == ("FedAvg", METHOD)
    then, now = (scores(tiny_trained / row / "seed-0") for row in ("fedavg", "n-dirichlet"))
    assert [(case.site, case.case) for case in made.cases if case.site != "I"] == [
        key for key in sorted(then) if key[0] != "I"
    ]
    assert {(case.site, case.case) for case in made.cases} == then.keys()  # two, one and one
    for case in made.cases:
        key = case.site, case.case
        assert case.difference == now[key] - then[key]
        assert [panel.what for panel in case.panels] == ["image", "label", "FedAvg", METHOD]
        assert [panel.score for panel in case.panels] == [None, None, then[key], now[key]]
        assert (case.why == ONLY) == (case.site != "I")
        assert case.why != GAIN or case.difference > 0
        assert case.why != LOSS or case.difference < 0
        assert 1 <= case.slice <= case.slices
        assert case.upright
        assert f"slice {case.slice} of {case.slices}" in case.caption
        assert f"{100 * case.difference:+.1f} points" in case.caption
        assert f"FedAvg {100 * then[key]:.1f}" in case.caption
    assert told[-1] == ("drawing example cases", 4, 4)
    assert not [message for message in made.notes if "off by" in message or "no picture" in message]
    assert any("Auto-FedAvg-N-Dirichlet is the only row" in message for message in made.notes)
    assert any("right is on the left" in message for message in made.notes)


def test_pictures_show_image_label_and_what_each_model_finds(tiny_trained, tiny_examples) -> None:
    """Made a second time by the way that training and scoring go."""
    made, _ = tiny_examples
    runs = [load_trained(tiny_trained / row / "seed-0") for row in ("fedavg", "n-dirichlet")]
    task = runs[0].config.task
    assert isinstance(task, Synthetic)
    sites = task.problem().sites
    for case in made.cases:
        (ready,) = (c for c in sites[case.site]._cases["test"] if c.case == case.case)
        found = [sites[case.site].predict(run.network, ready).numpy() for run in runs]
        (files,) = (c for c in task.case_files()[case.site] if c.case == case.case)
        scan, label = load(files, {"foreground": (1,)})
        np.testing.assert_array_equal(label, ready.original().numpy())
        seen = view(scan, label, *found)
        expected = panels(seen, *shades(scan, task.pipeline), 1)
        assert [panel.png for panel in case.panels] == [picture.png for picture in expected]
        assert case.slice == seen.slice
        image, own, *others = case.panels
        grey = pixels(image)
        assert (grey == grey[..., :1]).all()
        assert coloured(own, LABEL)
        assert all(coloured(panel, LABEL) for panel in others)
        for panel, mask in zip(others, seen.others, strict=True):
            assert coloured(panel, FOUND) == mask.any()
        assert max(image.size) == 256
        assert {panel.size for panel in case.panels} == {image.size}
        assert all(case.case in case.alt(panel) for panel in case.panels)
        assert len({case.alt(panel) for panel in case.panels}) == 4
    assert [key.what for key in made.key] == ["label", "segmentation"]


def test_a_row_may_be_named(tiny_trained) -> None:
    results = read_results([tiny_trained])
    assert example_cases(results, "n-dirichlet").method == METHOD
    with pytest.raises(RunError, match="did you mean n-dirichlet"):
        example_cases(results, "n-dirichle")


@pytest.mark.parametrize(
    ("row", "baseline", "said"),
    [
        ("fedavg", "", "FedAvg is the baseline itself"),
        ("local-only", "", "FedAvg and Local only have no finished seed in common"),
        ("", "local-only", "no row beside the baseline is finished and has a global model"),
    ],
)
def test_rows_that_cannot_be_compared_are_told(tiny_trained, row, baseline, said) -> None:
    made = example_cases(read_results([tiny_trained], baseline), row)
    assert not made.cases
    assert [
        message for message in made.notes if message.startswith("no pictures: ") and said in message
    ]


def test_without_a_baseline_there_are_no_pictures(tiny_trained) -> None:
    made = example_cases(read_results([tiny_trained / "n-dirichlet", tiny_trained / "local-only"]))
    assert (made.baseline, made.cases) == ("", ())
    assert "no pictures: there is no baseline" in made.notes[0]


@pytest.fixture
def copied(tiny_trained, tmp_path) -> Path:
    shutil.copytree(tiny_trained, tmp_path / "tiny")
    return tmp_path / "tiny"


def only_note(home: Path) -> str:
    made = example_cases(read_results([home]))
    assert not made.cases
    (message,) = made.notes
    return message


def edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_rows_that_tested_other_cases_are_told(copied) -> None:
    run = RunFolder(copied / "n-dirichlet" / "seed-0")
    run.write_scores([row._replace(case=f"{row.case}-b") for row in run.scores()])
    run.set_status("finished")
    assert f"FedAvg and {METHOD} have tested no case in common" in only_note(copied)


def test_a_missing_or_damaged_model_is_told(copied) -> None:
    models = copied / "n-dirichlet" / "seed-0" / "checkpoints"
    model_file(models.parent, ending="safetensors").write_bytes(b"nothing")
    assert "this checkpoint cannot be read" in only_note(copied)
    shutil.rmtree(models)
    message = only_note(copied)
    assert message.startswith("no pictures: ")
    assert "there is no model 'global' in this run" in message


def test_other_splits_and_other_data_are_told(copied) -> None:
    files = [*copied.glob("*/seed-0/environment.json")]
    data = json.loads(files[0].read_text())["data"]
    for key, said in (("split_sha256", "the splits of the data are"), ("data", "the data is")):
        for path in files:
            edit(path, data={**data, key: "another"})
        assert f"{said} no longer what the run was made with" in only_note(copied)


def test_a_run_from_python_has_no_pictures(copied) -> None:
    for path in copied.glob("*/seed-0/config.toml"):
        path.write_text(path.read_text().replace('name = "synthetic"', 'name = "loaders"'))
    assert "this model was trained from Python" in only_note(copied)


def alter_score(home: Path, by: float) -> None:
    run = RunFolder(home / "n-dirichlet" / "seed-0")
    run.write_scores(
        row._replace(value=row.value + by) if (row.site, row.metric) == ("II", "dice") else row
        for row in run.scores()
    )
    run.set_status("finished")


def mismatches(home: Path) -> list[str]:
    made = example_cases(read_results([home]))
    assert len(made.cases) == 4
    return [message for message in made.notes if "scores.csv" in message]


def test_a_score_that_cannot_be_had_again_is_told_with_the_likely_reason(copied) -> None:
    assert not mismatches(copied)
    alter_score(copied, 0.005)
    (message,) = mismatches(copied)
    assert message.startswith("In 1 of 8 pictures")
    assert "off by up to 0.005 (II, " in message
    assert "nothing is known to have changed" in message
    about = copied / "n-dirichlet" / "seed-0" / "environment.json"
    edit(about, processor="another")
    assert not mismatches(copied)  # small differences are to be expected there
    alter_score(copied, 0.02)
    (message,) = mismatches(copied)
    assert "off by up to 0.025" in message
    assert "made elsewhere (other processor)" in message
    here = {key: json.loads(about.read_text())[key] for key in ("versions", "device")}
    processor = json.loads((copied / "fedavg/seed-0/environment.json").read_text())["processor"]
    # It was tested here after all.
    edit(about, resumed=[{"after_round": 1, **here, "processor": processor}])
    assert "nothing is known to have changed" in mismatches(copied)[0]
    edit(about, asked_device="cuda", device="a card that is not here", resumed=[])
    assert "(other device, processor)" in mismatches(copied)[0]


def test_errors_in_the_program_are_not_hidden(tiny_trained, monkeypatch) -> None:
    def broken(*_):
        raise ValueError("a mistake")

    monkeypatch.setattr(report, "_draw_case", broken)
    with pytest.raises(ValueError, match="a mistake"):
        example_cases(read_results([tiny_trained]))


STUDY = """
[study]
name = "own"
folds = {folds}

[base]
rounds = 1

[base.task]
name = "datalist"
datalist = "list.csv"
cache = "cache"

[base.task.pipeline]
roi = [16, 16]
channels = [4, 8]
strides = [[2, 2]]

[base.training]
iterations = 8
batch_size = 2
learning_rate = 1e-2

[[run]]
name = "fedavg"
method = {{ name = "fedavg" }}

[[run]]
name = "even"
method = {{ name = "fedavg", weights = "even" }}
"""


def write_pictures(home: Path, folds: int) -> Path:
    """Two sites of 12 and 6 coloured pictures with two classes; a study over some folds, run."""
    random = np.random.default_rng(0)
    rows = ["site,case,image,label,fold"]
    for number in range(18):
        label = np.zeros((24, 32), np.uint8)
        label[3:9, 3 : 12 + number % 5], label[12:18, 14:24] = 1, 2
        image = random.integers(0, 60, (24, 32, 3)) + 80 * label[..., None] * [1, 0.5, 0.25]
        Image.fromarray(image.astype(np.uint8)).save(home / f"{number}.png")
        Image.fromarray(label).save(home / f"{number}-label.png")
        place = f"{number}.png,{number}-label.png"
        rows.append(f"site-{int(number % 3 == 0)},case-{number},{place},{number // 3 % 3}")
    (home / "list.csv").write_text("\n".join(rows))
    (home / "own.toml").write_text(STUDY.format(folds=list(range(folds))))
    assert cli._main(["run", str(home / "own.toml"), "--out", str(home / "runs")]) == 0
    return home


@pytest.fixture(scope="module")
def folded(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("folded"), 2)


def test_colour_pictures_of_two_classes_in_folds(folded) -> None:
    made = example_cases(read_results([folded / "runs"]))
    assert (made.baseline, made.method) == ("fedavg", "even")
    assert [case.site for case in made.cases] == sorted(case.site for case in made.cases)
    assert {case.site for case in made.cases} == {"site-0", "site-1"}
    shown = {int(case.case.removeprefix("case-")) // 3 % 3 for case in made.cases}
    assert shown == {0, 1}  # cases of both folds
    assert [key.what for key in made.key] == ["1", "2"]
    for case in made.cases:
        assert (case.slice, case.slices, case.upright) == (None, 1, False)
        assert "slice" not in case.caption
        with Image.open(folded / f"{case.case.removeprefix('case-')}.png") as file:
            enlarged = file.resize((256, 192), Image.Resampling.BICUBIC)
        assert np.abs(pixels(case.panels[0]).astype(int) - np.array(enlarged)).max() <= 3
        assert all(coloured(case.panels[1], colour) for colour in COLOURS[:2])
    assert not [message for message in made.notes if "scores.csv" in message or "slice" in message]
    for site in ("site-0", "site-1"):
        whys = [case.why for case in made.cases if case.site == site]
        assert whys[0] == MEDIAN
        assert {GAIN, LOSS} & {*whys}


def test_every_case_is_segmented_by_the_model_of_its_fold(folded, tmp_path) -> None:
    shutil.copytree(folded / "runs", tmp_path / "runs")
    one, two = (tmp_path / f"runs/own/even/fold-{k}/seed-0/checkpoints" for k in (0, 1))
    one.rename(tmp_path / "kept")
    two.rename(one)
    (tmp_path / "kept").rename(two)
    made = example_cases(read_results([tmp_path / "runs"]))
    (message,) = (message for message in made.notes if "scores.csv" in message)
    assert f" of {2 * len(made.cases)} pictures" in message
    assert ", even: " in message


@pytest.fixture
def pictures(tmp_path) -> Path:
    return write_pictures(tmp_path, 1)


def test_what_became_of_the_data_is_told(pictures) -> None:
    results = read_results([pictures / "runs"])
    whole = example_cases(results)
    case = whole.cases[0].case.removeprefix("case-")
    # One picture that is shown is gone: the others are there.
    (pictures / f"{case}.png").rename(pictures / "kept.png")
    made = example_cases(results)
    assert [c.case for c in made.cases] == [c.case for c in whole.cases[1:]]
    assert [c.panels for c in made.cases] == [c.panels for c in whole.cases[1:]]
    said = f"no picture of {whole.cases[0].site}, case-{case}: {case}.png: no such file"
    assert any(said in message for message in made.notes)
    assert any("was not compared as a whole" in message for message in made.notes)
    # It is back with another content.
    Image.fromarray(np.eye(24, 32, dtype=np.uint8) * 200).convert("RGB").save(
        pictures / f"{case}.png"
    )
    made = example_cases(results)
    assert not made.cases
    assert "no pictures: " in made.notes[0]
    assert "the content of the files is no longer what the run was made with" in made.notes[0]
    # As it was; and nothing but what is shown was ever prepared here.
    shutil.move(pictures / "kept.png", pictures / f"{case}.png")
    shutil.rmtree(pictures / "cache")
    again = example_cases(results)
    assert [c.panels for c in again.cases] == [c.panels for c in whole.cases]
    assert any("was not compared as a whole" in message for message in again.notes)
    # All gone, and then the list as well.
    for file in pictures.glob("*.png"):
        file.unlink()
    assert "no such file" in only_note(pictures / "runs")
    (pictures / "list.csv").unlink()
    assert only_note(pictures / "runs").startswith("no pictures: ")


def test_tasks_without_segmentation_have_no_pictures(tmp_path) -> None:
    cifar10_binary(tmp_path)
    study = (
        f'[base]\nrounds = 1\ntask = {{ name = "cifar10", root = "{tmp_path}", clients = 2, '
        'holdout = 0.2 }\ntraining = { iterations = 1, batch_size = 4, optimiser = "sgd" }\n'
        '[[run]]\nname = "fedavg"\nmethod = { name = "fedavg" }\n'
        '[[run]]\nname = "even"\nmethod = { name = "fedavg", weights = "even" }\n'
    )
    (tmp_path / "study.toml").write_text(study)
    assert cli._main(["run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "runs")]) == 0
    assert "the task 'cifar10' segments no images" in only_note(tmp_path / "runs")


def test_public_scans_are_opened_as_far_as_they_are_there(tmp_path) -> None:
    write_covid(tmp_path, cases=2)
    task = Covid(root=str(tmp_path), cases=2)
    first = task.collection().cases["I"][0]
    first.image[0].unlink()
    part = Covid(root=str(tmp_path), cases=2).collection()
    assert (part.lacking, part.content()) == (1, None)
    with pytest.raises(DataError, match="the files of this case are missing"):
        part.case("I", first.case)
    scan, label = part.load(part.cases["I"][1])
    assert scan.grid == label.shape
    for file in tmp_path.rglob("*.nii.gz"):
        file.unlink()
    with pytest.raises(DataError, match="data is missing or unusable"):
        Covid(root=str(tmp_path), cases=2).collection()


def lgg_home() -> Path | None:
    beside = ROOT.parent / "shared" / "data" / "lgg_flair_3d"
    return next((p for p in (data_home("lgg_flair_3d"), beside) if p.is_dir()), None)


@pytest.mark.data
@pytest.mark.skipif(lgg_home() is None, reason="lgg_flair_3d is not in AUTOFEDAVG_DATA")
def test_lower_grade_gliomas_are_shown_as_stored_without_the_dark_around_the_head() -> None:
    study = read_study("study-lgg", [f"task.root={lgg_home()}"])
    collection = study.runs[0].on_fold(0, [0]).task.collection()
    for site, cases in collection.cases.items():
        scan, label = collection.load(cases[0])
        seen = view(scan, label, label)
        assert (seen.upright, len(seen.others)) == (False, 1), site
        made = panels(seen, *shades(scan, collection.how), 1)
        assert all(len(picture.png) < 30_000 for picture in made)
        assert max(made[0].size) == 256
        shown = pixels(made[0])[..., 0] > 38
        for edge in (shown[:12], shown[-12:], shown[:, :12], shown[:, -12:]):
            assert edge.any()  # the head fills the frame
