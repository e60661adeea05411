"""Prepared cases: whole or not there, whoever makes them, and the same from memory and disk."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from autofedavg.core.errors import DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.tasks.imaging import cache, casefolder, prepared
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import BINARY, Case
from autofedavg.tasks.imaging.prepared import SPLITS, Store
from autofedavg.tasks.imaging.segmentation import SegmentationSite, network
from volumes import save_nifti, write_case

WHOLE = (slice(None),) * 3
HOW = Pipeline(
    spacing=(1.0, 1.0, 1.5), window=(0.0, 1.0), roi=(8, 8, 8), channels=(4, 8), overlap=0.25
)
THREE = ("train", "validation", "test")


def volume(number: int, size=(12, 11, 7)) -> tuple[np.ndarray, np.ndarray]:
    image = np.random.default_rng(number).random(size, dtype=np.float32)
    return image, (image > 0.8).astype(np.uint8)


def cases(folder: Path, count: int = 6, first: int = 0, **change) -> list[Case]:
    return [
        write_case(folder, f"c{n}", *volume(first + n), split=THREE[n % 3], **change)
        for n in range(count)
    ]


def test_cases_come_by_site_and_split_and_are_made_once(tmp_path, monkeypatch) -> None:
    wanted = {"north": cases(tmp_path / "n"), "south": cases(tmp_path / "s", first=50)}
    told = []
    found = Store(HOW, cache=str(tmp_path)).sites(wanted, lambda *what: told.append(what))
    assert {site: {s: len(p) for s, p in parts.items()} for site, parts in found.items()} == {
        site: {"train": 2, "validation": 2, "test": 2, "holdout": 0} for site in wanted
    }
    assert told[-1] == ("preparing cases", 12, 12)
    monkeypatch.setattr(prepared, "arrays", None)  # nothing is made a second time
    again = Store(HOW, cache=str(tmp_path)).sites(wanted)
    assert again["north"]["test"][1].case == "c5"
    assert Store(HOW, cache=str(tmp_path)).has(wanted["north"][0])


def test_a_change_of_files_settings_or_classes_makes_a_case_anew(tmp_path) -> None:
    case = cases(tmp_path)[0]
    store = Store(HOW, cache=str(tmp_path))
    store.prepare(case)
    two = {"a": (1,), "b": (2,)}
    for other in (
        Store(HOW.model_copy(update={"window": (0.0, 2.0)}), cache=str(tmp_path)),
        Store(HOW, two, str(tmp_path)),
        Store(HOW, cache=str(tmp_path / "elsewhere")),
    ):
        assert not other.has(case)
    os.utime(case.label, ns=(1, 1))
    assert not store.has(case)
    assert not store.has(case._replace(image=case.image * 2))


def test_the_order_of_the_classes_numbers_them(tmp_path) -> None:
    image, label = volume(0)
    label[0] = 2
    case = write_case(tmp_path, "a", image, label)
    how = HOW.model_copy(update={"spacing": "keep"})
    for order, numbers in (
        ({"a": (1,), "b": (2,)}, [0, 1, 2]),
        ({"b": (2,), "a": (1,)}, [0, 2, 1]),
    ):
        made = Store(how, order, str(tmp_path)).prepare(case)
        assert np.array_equal(made.original().numpy(), np.choose(label, numbers))


def test_threads_change_no_bit(tmp_path) -> None:
    wanted = cases(tmp_path, 9)
    together = Store(HOW, cache=str(tmp_path / "one")).sites({"north": wanted})["north"]
    alone = Store(HOW, cache=str(tmp_path / "two"))
    by_name = {case.case: case for part in together.values() for case in part}
    for case in wanted:
        made = alone.prepare(case)
        assert torch.equal(made.crop(WHOLE)[0], by_name[case.case].crop(WHOLE)[0])
        assert torch.equal(made.original(), by_name[case.case].original())
        assert made.facts == by_name[case.case].facts


MAKER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_prepared import HOW, Store, cases, prepared, casefolder
wanted = [c._replace(split=s) for c, s in zip({wanted}, ["train", "validation", "test"] * 9)]
{extra}
found = Store(HOW, cache={cache!r}).sites({{"north": wanted}})
print(sorted(c.facts["image_sha256"] for p in found["north"].values() for c in p))
"""


def maker(tmp_path, wanted, extra: str = "") -> subprocess.Popen:
    """A process that prepares cases."""
    listed = "[" + ", ".join(
        f"prepared.Case({c.case!r}, '', (Path({str(c.image[0])!r}),), Path({str(c.label)!r}))"
        for c in wanted
    ) + "]"  # fmt: skip
    here = Path(__file__).parent
    text = MAKER.format(tests=str(here), wanted=listed, cache=str(tmp_path / "cache"), extra=extra)
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{here.parents[1]}"},
    )


@pytest.mark.process
def test_two_processes_may_prepare_at_once(tmp_path) -> None:
    wanted = cases(tmp_path, 9)
    both = [maker(tmp_path, wanted) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert told[0][0] == told[1][0]
    left = [*(tmp_path / "cache" / "prepared").glob("*/*")]
    assert len(left) == 9
    assert all(casefolder.is_whole(place) for place in left)


@pytest.mark.process
def test_a_killed_process_leaves_what_it_had_finished(tmp_path) -> None:
    wanted = cases(tmp_path, 6)
    slow = """
real = prepared.write_case
def write(folder, made, classes):
    real(folder, made, classes)
    if len([p for p in folder.parent.parent.glob("*/*") if p.name[0] != "."]) >= 2:
        (folder / "case.json").unlink()
        Path({flag!r}).touch()
        time.sleep(60)
prepared.write_case = write
"""
    flag = tmp_path / "now"
    process = maker(tmp_path, wanted, slow.format(flag=str(flag)))
    while not flag.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()
    assert flag.exists(), said
    store = Store(HOW, cache=str(tmp_path / "cache"))
    done = [case for case in wanted if store.has(case)]
    assert 2 <= len(done) < 6
    half = [*(tmp_path / "cache" / "prepared").glob("*/.*")]
    assert half
    stamps = {c.case: (store._place(c) / "case.json").stat().st_mtime_ns for c in done}
    store.sites({"north": wanted})
    assert all(store.has(case) for case in wanted)
    for case in done:  # what was there was left alone
        assert (store._place(case) / "case.json").stat().st_mtime_ns == stamps[case.case]
    assert [*(tmp_path / "cache" / "prepared").glob("*/.*")] == half  # it might be at work
    for place in half:
        os.utime(place, (time.time() - 4000,) * 2)
    store.sites({"north": wanted})
    assert not [*(tmp_path / "cache" / "prepared").glob("*/.*")]


@pytest.mark.parametrize("spoil", ["cut", "gone", "no facts", "nonsense"])
def test_a_folder_that_is_not_whole_is_made_anew(tmp_path, spoil) -> None:
    case = cases(tmp_path)[0]
    store = Store(HOW, cache=str(tmp_path))
    whole = store.prepare(case)
    place = store._place(case)
    if spoil == "cut":
        (place / "image.npy").write_bytes((place / "image.npy").read_bytes()[:-7])
    elif spoil == "gone":
        (place / "centres.npy").unlink()
    elif spoil == "no facts":
        (place / "case.json").unlink()
    else:
        (place / "case.json").write_text("[1]")
    assert not store.has(case)
    again = store.prepare(case)
    assert store.has(case)
    assert torch.equal(again.crop(WHOLE)[0], store.prepare(case).crop(WHOLE)[0])
    assert again.facts == whole.facts


def test_a_finished_case_is_not_taken_away_by_a_slower_process(tmp_path, monkeypatch) -> None:
    case = cases(tmp_path)[0]
    store = Store(HOW, cache=str(tmp_path))
    real, places = prepared.write_case, []

    def write(folder, made, classes):
        real(folder, made, classes)
        if not places:  # another process finishes in between
            places.append(folder)
            Store(HOW, cache=str(tmp_path)).prepare(case)
            places.append((store._place(case) / "case.json").stat().st_ino)

    monkeypatch.setattr(prepared, "write_case", write)
    monkeypatch.setattr(cache.threading, "get_ident", lambda: len(places))
    store.prepare(case)
    assert (store._place(case) / "case.json").stat().st_ino == places[1]
    assert not [*(tmp_path / "prepared").glob("*/.*")]


def test_every_unusable_case_is_listed_at_once(tmp_path) -> None:
    image, label = volume(0, (9, 9, 9))
    hole = image.copy()
    hole[0, 0, 0] = np.nan
    moved = np.eye(4)
    moved[0, 3] = 5
    spaced = tmp_path / "mit ü und Raum"
    fine = cases(spaced, 3, first=9)

    def write(name, image=image, label=label, affine=None) -> Case:
        return Case(
            name,
            "train",
            (save_nifti(spaced / f"{name}_image.nii.gz", image),),
            save_nifti(spaced / f"{name}_label.nii.gz", label, affine),
        )

    cut = write("cut")
    cut.image[0].write_bytes(cut.image[0].read_bytes()[:200])
    wrong = [
        write("grid", label=label[:, :, :8]),
        write("place", affine=moved),
        write("nan", image=hole),
        write("constant", image=np.full_like(image, 3)),
        write("classes", label=label * 3),
        cut,
        Case("gone", "test", (spaced / "gone.nii.gz",), fine[0].label),
    ]
    with pytest.raises(DataError) as caught:
        Store(HOW, cache=str(tmp_path)).sites({"north": fine + wrong})
    said = str(caught.value)
    assert said.startswith("7 of 10 cases cannot be used:")
    for piece in (
        "north, grid: ", "grid_label.nii.gz: its grid is 9 x 9 x 8, the image's 9 x 9 x 9",
        "place_label.nii.gz: it lies 5 voxels away from its image",
        "nan_image.nii.gz: it holds numbers that are not finite",
        "constant_image.nii.gz: it has the same value everywhere",
        "classes_label.nii.gz: it holds 3, which the class list does not have",
        "cut_image.nii.gz: cannot be read", "gone.nii.gz: no such file",
    ):  # fmt: skip
        assert piece in said
    assert caught.value.exit_code == 3


def test_rounding_of_an_affine_is_no_other_place(tmp_path) -> None:
    image, label = volume(0)
    off = np.eye(4)
    off[0, 3] = 0.04
    case = Case("a", "", (save_nifti(tmp_path / "i.nii", image),),
                save_nifti(tmp_path / "l.nii", label, off))  # fmt: skip
    Store(HOW, cache=str(tmp_path)).prepare(case)


@pytest.mark.parametrize("split", THREE)
def test_a_site_without_cases_of_a_split_is_refused(tmp_path, split) -> None:
    wanted = [case for case in cases(tmp_path) if case.split != split]
    with pytest.raises(DataError, match=f"south has no {split} case; give every site at least one"):
        Store(HOW, cache=str(tmp_path)).sites({"north": cases(tmp_path), "south": wanted})


@pytest.mark.parametrize("across", ["sites", "splits"])
def test_one_image_under_two_names_is_refused(tmp_path, across) -> None:
    wanted = {"north": cases(tmp_path / "n"), "south": cases(tmp_path / "s", first=50)}
    where = ("south", "test") if across == "sites" else ("north", "test")
    image, label = volume(0)  # north's first training case, saved again by another program
    copy = Case("copy", where[1], (save_nifti(tmp_path / "x.nii", image.astype(np.float64)),),
                save_nifti(tmp_path / "y.nii", label))  # fmt: skip
    wanted[where[0]].append(copy)
    with pytest.raises(
        DataError, match=rf"would leak:\n  north/train/c0 and {'/'.join(where)}/copy"
    ):
        Store(HOW, cache=str(tmp_path)).sites(wanted)


def test_a_full_disk_is_told_and_leaves_nothing_half_made(tmp_path, monkeypatch) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(casefolder.np, "save", full)
    with pytest.raises(
        DataError,
        match=r"cannot be written: No space left on device; free some space there, or set",
    ):
        Store(HOW, cache=str(tmp_path)).prepare(cases(tmp_path)[0])
    assert not [*(tmp_path / "prepared").glob("*/*")]
    with pytest.raises(DataError, match=r"^\S+prepared: prepared cases cannot be written: No sp"):
        Store(HOW, cache=str(tmp_path)).sites({"north": cases(tmp_path)})


def sites_of(tmp_path, memory: float) -> SegmentationSite:
    wanted = cases(tmp_path, 9)
    found = Store(HOW, cache=str(tmp_path), memory=memory).sites({"north": wanted})["north"]
    return SegmentationSite("north", found, HOW)


def test_memory_is_bounded_and_changes_no_bit(tmp_path) -> None:
    """All held, none held, and some held: the same batches and the same scores."""
    one = sites_of(tmp_path, 1.0)
    size = max(case.nbytes for part in one._cases.values() for case in part)
    several = {memory: sites_of(tmp_path, memory * size / 2**30) for memory in (0, 4)}
    held = [case.held for split in SPLITS for case in several[4]._cases[split]]
    assert 3 <= sum(held) <= 5
    assert all(held[:3]), "training cases are held first"
    assert not any(case.held for part in several[0]._cases.values() for case in part)
    torch.manual_seed(0)
    net = network(HOW).eval()
    training = Training(iterations=5, batch_size=3)
    for other in several.values():
        for t in (1, 2):
            batches = zip(one.train_batches(Seeds(0), t, training),
                          other.train_batches(Seeds(0), t, training), strict=True)  # fmt: skip
            for a, b in batches:
                assert torch.equal(a[0], b[0])
                assert torch.equal(a[1], b[1])
            a, b = (s.weight_batch(Seeds(0), t, 1, "validation", 2) for s in (one, other))
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])
        with torch.no_grad():
            assert one.score(net, "test") == other.score(net, "test")


def test_batches_lie_on_one_device_whatever_is_held_where(tmp_path) -> None:
    """The meta device has no numbers: what needs them must have stayed here."""
    one = sites_of(tmp_path, 1.0)
    size = max(case.nbytes for part in one._cases.values() for case in part)
    far = torch.device("meta")
    for memory in (0, 1.5, 20):
        site = sites_of(tmp_path, memory * size / 2**30)
        site.settle(far)
        for image, label in site.train_batches(Seeds(0), 1, Training(iterations=6, batch_size=3)):
            assert (image.device.type, label.device.type) == ("meta", "meta")
        assert site.weight_batch(Seeds(0), 1, 1, "validation", 2)[0].device.type == "meta"
    case = sites_of(tmp_path, 1.0)._cases["train"][0]
    case.settle(far, move=False)  # no room there
    assert case._held[0].device.type == "cpu"
    assert case.crop((slice(0, 2),) * 3)[0].device.type == "meta"


def test_bytes_that_are_counted_are_the_bytes_that_are_held(tmp_path) -> None:
    for how in (HOW, HOW.model_copy(update={"spacing": "keep"})):
        case = Store(how, BINARY, str(tmp_path)).prepare(cases(tmp_path)[0])
        case.hold()
        parts = {id(t): t for t in (*case._held, case._original, *case._centres)}
        assert case.nbytes == sum(t.nbytes for t in parts.values())
