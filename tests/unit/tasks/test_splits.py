"""Who trains, who selects and who tests: never the same patient, and the same draw each time."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import DataError
from autofedavg.tasks.lists.listing import ListedCase, Listing
from autofedavg.tasks.lists.splits import split_digest, split_file, splits_of

SHARES = (0.6, 0.2, 0.2)


def listing(path: Path, sites, **more) -> Listing:
    """A list from site -> patients of its cases."""
    entries = [
        ListedCase(site, f"c{number}", (Path("i"),), Path("l"), patient=str(patient), **more)
        for site, patients in sites.items()
        for number, patient in enumerate(patients)
    ]
    return Listing(path / "list.csv", path, tuple(entries), {})


def drawn(listing, fold=-1, shares=SHARES, seed=0, holdout=0.0):
    return splits_of(listing, fold, shares, seed, holdout)


def by_patient(listing, splits) -> dict[tuple[str, str], set[str]]:
    found: dict = {}
    for entry in listing.entries:
        found.setdefault((entry.site, entry.patient), set()).add(splits[entry.site][entry.case])
    return found


SITES = st.dictionaries(
    st.sampled_from(["Süd", "a b", "c"]),
    st.lists(st.integers(0, 12), min_size=3, max_size=30).filter(lambda p: len(set(p)) >= 4),
    min_size=1,
)


@given(SITES, st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.4]))
def test_a_draw_never_leaks_and_never_changes(sites, seed, holdout) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        listed = listing(home, sites)
        large = all(len(set(patients)) >= 7 for patients in sites.values())
        holdout = holdout if large else 0.0  # two or three training patients are enough then
        found = drawn(listed, seed=seed, holdout=holdout)
        assert all(len(splits) == 1 for splits in by_patient(listed, found).values())
        for site in sites:
            wanted = {"train", "validation", "test"} | ({"holdout"} if holdout else set())
            assert set(found[site].values()) == wanted
        assert drawn(listed, seed=seed, holdout=holdout) == found
        split_file(listed, seed).unlink()
        assert drawn(listed, seed=seed, holdout=holdout) == found
        if holdout:  # comes out of training, the rest stays as it is
            plain = drawn(listed, seed=seed)
            for site, cases in plain.items():
                for case, split in cases.items():
                    allowed = {"train", "holdout"} if split == "train" else {split}
                    assert found[site][case] in allowed
    finally:
        shutil.rmtree(home)


@given(st.integers(3, 200), st.tuples(*[st.floats(0.01, 1)] * 3))
def test_shares_are_kept_and_every_split_has_a_patient(n, shares) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        found = drawn(listing(home, {"a": range(n)}), shares=shares)["a"]
    finally:
        shutil.rmtree(home)
    counts = [list(found.values()).count(split) for split in ("train", "validation", "test")]
    assert min(counts) >= 1
    if min(shares) * n / sum(shares) > 1:
        for count, share in zip(counts, shares, strict=True):
            assert abs(count - n * share / sum(shares)) <= 1.5


def test_a_sites_draw_depends_on_no_other_site(tmp_path) -> None:
    (tmp_path / "two").mkdir()
    alone = drawn(listing(tmp_path, {"a": range(20)}))
    both = drawn(listing(tmp_path / "two", {"a": range(20), "b": range(9)}))
    assert alone["a"] == both["a"]
    assert split_digest(alone) != split_digest(both)
    (tmp_path / "seed").mkdir()
    assert drawn(listing(tmp_path / "seed", {"a": range(20)}), seed=1) != alone


def test_a_saved_draw_is_used_again_and_may_be_edited(tmp_path) -> None:
    listed = listing(tmp_path, {"a": range(9)})
    found = drawn(listed)
    path = split_file(listed, 0)
    assert path == tmp_path / "list.split-0.json"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    content = json.loads(path.read_text())
    moved = next(case for case, split in found["a"].items() if split == "train")
    content["sites"]["a"][moved] = "test"
    path.write_text(json.dumps(content))
    assert drawn(listed)["a"][moved] == "test"


def test_a_saved_draw_that_does_not_fit_is_refused(tmp_path) -> None:
    listed = listing(tmp_path, {"a": range(9)})
    drawn(listed)
    with pytest.raises(DataError, match="1 cases of the list are not in it, 0 of its cases"):
        drawn(listing(tmp_path, {"a": range(10)}))
    with pytest.raises(DataError, match="0 cases of the list are not in it, 1 of its cases"):
        drawn(listing(tmp_path, {"a": range(8)}))
    with pytest.raises(DataError, match=r"drawn with shares \[0\.6, 0\.2, 0\.2\], and task"):
        drawn(listed, shares=(0.5, 0.25, 0.25))
    path = split_file(listed, 0)
    path.write_text(path.read_text().replace('"test"', '"later"', 1))
    with pytest.raises(DataError, match="it holds the split 'later'"):
        drawn(listed)
    path.write_text("{")
    with pytest.raises(DataError, match=r"cannot be read .*; remove it to draw new splits"):
        drawn(listed)


def test_a_patient_in_two_splits_is_refused(tmp_path) -> None:
    entries = [
        ListedCase("a", "c1", (Path("i"),), Path("l"), "train", "p"),
        ListedCase("a", "c2", (Path("i"),), Path("l"), "test", "p"),
        ListedCase("b", "c3", (Path("i"),), Path("l"), "validation", "p"),
    ]
    listed = Listing(tmp_path / "list.csv", tmp_path, tuple(entries), {})
    with pytest.raises(DataError, match="patient p of a: c1 is in train, c2 in test"):
        drawn(listed)


def test_a_site_has_splits_or_has_none(tmp_path) -> None:
    given_splits = ["train", "validation", "test"]
    entries = [
        ListedCase("a", f"c{n}", (), Path("l"), s, f"p{n}") for n, s in enumerate(given_splits)
    ]
    entries += [ListedCase("b", f"c{n}", (), Path("l"), "", f"p{n}") for n in range(5)]
    listed = Listing(tmp_path / "list.csv", tmp_path, tuple(entries), {})
    found = drawn(listed)
    assert [*found["a"].values()] == given_splits
    assert set(found["b"].values()) == set(given_splits)
    assert "a" not in json.loads(split_file(listed, 0).read_text())["sites"]
    entries.append(ListedCase("a", "c9", (), Path("l"), "", "p9"))
    with pytest.raises(DataError, match=r"some cases of site a have a split and others, e\.g\. c9"):
        drawn(Listing(tmp_path / "other.csv", tmp_path, tuple(entries), {}))


def test_all_sites_that_are_too_small_are_told(tmp_path) -> None:
    with pytest.raises(DataError, match="a has 1 patient, b has 2 patients, and three splits"):
        drawn(listing(tmp_path, {"a": [1, 1, 1], "b": [1, 2], "c": range(5)}))
    assert not [*tmp_path.iterdir()]
    with pytest.raises(DataError, match="1 training patients, and the holdout would take 1; low"):
        drawn(listing(tmp_path, {"a": range(3)}), holdout=0.5)


def test_folds_test_every_patient_exactly_once(tmp_path) -> None:
    entries = [
        ListedCase(site, f"c{n}", (), Path("l"), patient=f"p{n // 2}", fold=(n // 2) % 5)
        for site in ("a", "b")
        for n in range(30)
    ]
    listed = Listing(tmp_path / "list.csv", tmp_path, tuple(entries), {})
    tested = []
    for fold in range(5):
        found = drawn(listed, fold=fold)
        following = drawn(listed, fold=(fold + 1) % 5)
        for entry in entries:
            split = found[entry.site][entry.case]
            if split == "test":
                tested.append((entry.site, entry.case))
            assert (split == "validation") == (following[entry.site][entry.case] == "test")
    assert sorted(tested) == sorted((e.site, e.case) for e in entries)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(DataError, match="there is no fold 5: the list's folds are 0 to 4"):
        drawn(listed, fold=5)
    with pytest.raises(DataError, match=r"5 cases have no fold, e\.g\. a/c0"):
        drawn(listing(tmp_path, {"a": range(5)}), fold=0)


def test_a_folder_that_cannot_be_written_is_told(tmp_path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(DataError, match=r"cannot be saved: No such file.*give the list a column"):
        drawn(listing(gone, {"a": range(5)}))
