"""The data list as a task: what is worked out, what is kept, and that nothing is stale."""

import json

import numpy as np
import pytest
from PIL import Image

from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.settings import origins
from autofedavg.experiment.config import parse_run, parse_study
from autofedavg.experiment.toml_text import to_toml
from autofedavg.tasks.lists.task import Datalist


@pytest.fixture
def own(tmp_path):
    """A task on small pictures: own(**settings)."""
    rows = ["site,image,label,patient"]
    for site in ("a", "b"):
        for number in range(8):
            random = np.random.default_rng([ord(site), number])
            Image.fromarray(random.integers(0, 255, (18, 20), dtype=np.uint8)).save(
                tmp_path / f"{site}{number}.png"
            )
            label = (random.random((18, 20)) < 0.3) * np.uint8(random.integers(1, 3))
            Image.fromarray(label).save(tmp_path / f"{site}{number}l.png")
            rows.append(f"{site},{site}{number}.png,{site}{number}l.png,p{number // 2}")
    (tmp_path / "list.csv").write_text("\n".join(rows))

    def make(**settings) -> Datalist:
        settings = {"pipeline": {"channels": (4, 8)}, **settings}
        where = {"datalist": str(tmp_path / "list.csv"), "cache": str(tmp_path / "cache")}
        return Datalist(**{**where, **settings})

    return make


def test_what_is_left_open_is_worked_out_and_what_is_set_is_kept(own) -> None:
    task = own(pipeline={"channels": (4, 8), "roi": (10, 12)}).resolved()
    assert task.pipeline.roi == (10, 12)
    assert task.pipeline.channels == (4, 8)
    assert task.pipeline.spacing == "keep"
    assert dict(task.classes) == {"1": (1,), "2": (2,)}
    assert task.image_channels == 1
    said = {path: origin for path, _, origin, _ in origins(task, "task.")}
    assert said["task.pipeline.roi"] == "study"
    assert said["task.pipeline.window"].startswith("derived from the data")
    assert said["task.classes"].startswith("derived from the data")
    assert said["task.image_channels"] == "derived from the data"
    assert said["task.datalist"] == "study"
    assert task.resolved() is task


@pytest.mark.parametrize("given", [{"classes": {"x": (1, 2)}}, {"image_channels": 1}])
def test_some_values_may_be_set_and_others_left_open(own, given) -> None:
    task = own(**given).resolved()
    (name,) = given
    assert getattr(task, name) == given[name]
    assert task.classes
    assert task.image_channels == 1
    assert len(task.problem().sites["a"].score(task.network().eval(), "test")) > 0


def test_a_resolved_task_survives_its_own_toml(own) -> None:
    classes = {"linker Flügel": (2,), 'the "other" one': (1,), "x.y": (7,)}
    task = own(classes=classes).resolved()
    row = {"name": "r", "method": {"name": "fedavg"}, "task": json.loads(task.model_dump_json())}
    import tomllib

    again = parse_run(tomllib.loads(to_toml(row)), "test").task
    assert again == task
    assert [*again.classes] == [*classes]


def test_copies_with_other_settings_are_not_stale(own, tmp_path) -> None:
    task = own()
    assert "holdout" not in task.splits["a"].values()
    assert "holdout" in task.model_copy(update={"holdout": 0.3}).splits["a"].values()
    one = task.site_names()
    text = (tmp_path / "list.csv").read_text()
    (tmp_path / "other.csv").write_text(text.replace("\nb,", "\nc,"))
    other = task.model_copy(update={"datalist": str(tmp_path / "other.csv")})
    assert (one, other.site_names()) == (["a", "b"], ["a", "c"])


def test_patients_stay_together(own) -> None:
    task = own()
    for site, cases in task.case_files().items():
        by_patient: dict = {}
        for case in cases:
            by_patient.setdefault(case.patient, set()).add(task.splits[site][case.case])
        assert len(by_patient) == 4
        assert all(len(splits) == 1 for splits in by_patient.values())


def test_description_tells_data_apart(own, tmp_path) -> None:
    one = own().describe()
    assert one == own().describe()
    assert one["cases"]["a"] == {"train": 4, "validation": 2, "test": 2, "holdout": 0}
    label = tmp_path / "a0l.png"
    pixels = np.array(Image.open(label))
    Image.fromarray(1 - np.minimum(pixels, 1)).save(label)
    two = own().describe()
    assert two["split_sha256"] == one["split_sha256"]
    assert two["content_sha256"] != one["content_sha256"]


def test_where_and_memory(own, tmp_path) -> None:
    task = own()
    assert task.where() == f"in {tmp_path}: all files present"
    held = sum(
        case.nbytes
        for parts in (s._cases for s in task.problem().sites.values())
        for part in parts.values()
        for case in part
    )
    assert task.memory() == pytest.approx(held, rel=0.8)
    assert own(hold=0.0).memory() == 0
    (tmp_path / "a0.png").unlink()
    with (tmp_path / "list.csv").open("a") as file:
        file.write("\na,later.png,,\n")
    said = own().where()
    assert "1 of 32 files are missing" in said
    assert said.endswith(", 1 case is left out without a label")


def test_labels_that_are_images_are_told(own, tmp_path) -> None:
    deep = np.arange(360, dtype=np.uint16).reshape(18, 20)
    Image.fromarray(deep).save(tmp_path / "a0l.png")
    with pytest.raises(DataError, match=r"359 different values, most in a/a0 \(360\).*check"):
        own().resolved()
    for site in "ab":
        for number in range(8):
            empty = np.zeros((18, 20), np.uint8)
            Image.fromarray(empty).save(tmp_path / f"{site}{number}l.png")
    with pytest.raises(DataError, match="every label is empty"):
        own().resolved()


def test_batches_balance_the_classes_and_depend_on_their_address_alone(own) -> None:
    site = own(pipeline={"channels": (4, 8), "foreground": 1.0}).problem().sites["a"]
    first = site.weight_batch(Seeds(3), 2, 5, "train", 4)
    site.weight_batch(Seeds(3), 2, 6, "train", 4)
    again = site.weight_batch(Seeds(3), 2, 5, "train", 4)
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert first[0].shape == (4, 1, *site._how.roi)
    assert (first[1].flatten(1) > 0).any(dim=1).all()


def test_a_study_without_a_list_is_told() -> None:
    row = {"name": "r", "method": {"name": "fedavg"}, "task": {"name": "datalist"}}
    with pytest.raises(ConfigError, match=r"task\.datalist: no data list is set; set it to"):
        parse_study({"run": [row]}, "study.toml")
    row["task"] = {"name": ["datalist"]}
    with pytest.raises(ConfigError):
        parse_study({"run": [row]}, "study.toml")


def test_sites_without_a_value_in_common_are_told(own, tmp_path) -> None:
    for number in range(8):
        path = tmp_path / f"b{number}l.png"
        Image.fromarray(np.where(np.array(Image.open(path)) > 0, 255, 0).astype(np.uint8)).save(
            path
        )
    with pytest.raises(DataError, match=r"those of b 255: no value in common.*name the classes"):
        own().resolved()


def test_check_tells_what_a_run_would_refuse(own) -> None:
    own().check()
    with pytest.raises(DataError, match=r"a/a0: its label holds [0-9]"):
        own(classes={"other": (77,)}).check()
    with pytest.raises(DataError, match="cases have no fold"):
        own(fold=0).check()
    with pytest.raises(ValueError, match="spacing must have sizes above 0"):
        own(pipeline={"spacing": (0.0, 1.0, 1.0)})


def test_all_scans_of_a_patient_are_one_batch(own) -> None:
    site = own().problem().sites["a"]
    assert site.cases()["train"] == 4
    assert site.patients("train") == 2
    assert site.patients("nowhere") == 0
    first = site.patient_batch("train", 0, np.random.RandomState(1), augment=True)
    again = site.patient_batch("train", 0, np.random.RandomState(1), augment=True)
    other = site.patient_batch("train", 1, np.random.RandomState(1), augment=True)
    assert first[0].shape[0] == first[1].shape[0] == 2
    assert (first[0] == again[0]).all()
    assert not (first[0] == other[0]).all()
    assert site.shares_patients("train", "train")
    assert not site.shares_patients("train", "validation")
