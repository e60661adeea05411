"""`--out` that cannot be a folder: an error that says so, before any work."""

from pathlib import Path

import pytest
from tests_tiny import TINY

from folders import write_study

TUNABLE = f"""{TINY}
[tune]
trials = 2
common = {{ "training.learning_rate" = [3e-2] }}
"""
VERBS = ("run", "tune", "archive", "report")


@pytest.fixture
def asked(tmp_path):
    """The arguments of a verb without its --out."""
    study = tmp_path / "tunable.toml"
    study.write_text(TUNABLE)
    home = write_study(tmp_path / "study")
    return {
        "run": ("run", study, "--only", "fedavg"),
        "tune": ("tune", study, "--only", "n-dirichlet"),
        "archive": ("archive", home),
        "report": ("report", home, "--no-examples"),
    }


def a_file(place: Path) -> tuple[Path, Path]:
    (place / "readme.py").write_text("kept")
    return place / "readme.py", place / "readme.py"


def below_a_file(place: Path) -> tuple[Path, Path]:
    (place / "readme.py").write_text("kept")
    return place / "readme.py" / "runs", place / "readme.py"


def a_device(_: Path) -> tuple[Path, Path]:
    return Path("/dev/null"), Path("/dev/null")


def a_broken_link(place: Path) -> tuple[Path, Path]:
    (place / "link").symlink_to(place / "nowhere" / "else")
    return place / "link", place / "link"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", [a_file, below_a_file, a_device, a_broken_link])
def test_a_file_is_no_folder(asked, tmp_path, say, verb, kind) -> None:
    out, culprit = kind(tmp_path)
    code, _, err = say(*asked[verb], "--out", out)
    said = "this link leads nowhere" if kind is a_broken_link else "this is a file"
    assert code == 1
    assert err.endswith(f"error: {culprit}: {said}; name another folder with --out\n")
    if culprit.suffix == ".py":
        assert culprit.read_text() == "kept"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("out", ["/proc/x", "/sys/x", "a" * 300])
def test_a_folder_that_cannot_be_made(asked, tmp_path, say, monkeypatch, verb, out) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = say(*asked[verb], "--out", out)
    assert code == 1
    assert f"error: {out}" in err
    assert "this folder cannot be made (" in err
    assert err.endswith("; name another folder with --out\n")


def test_a_row_or_a_study_whose_name_is_taken_by_a_file(asked, tmp_path, say) -> None:
    out = tmp_path / "out"
    for name in ("tiny", "tiny/fedavg"):
        taken = out / name
        taken.parent.mkdir(parents=True, exist_ok=True)
        taken.write_text("kept")
        code, _, err = say(*asked["run"], "--out", out)
        assert (code, err) == (
            1,
            f"error: {taken}: this is a file; name another folder with --out\n",
        )
        taken.unlink()


def test_a_link_to_a_folder_will_do(asked, tmp_path, say) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert say(*asked["archive"], "--out", tmp_path / "link")[0] == 0
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["study.zip"]


@pytest.mark.parametrize("engine", ["flare", "flower"])
def test_a_job_needs_a_folder_too(asked, tmp_path, say, engine) -> None:
    (tmp_path / "file").write_text("kept")
    study = asked["run"][1]
    for out, where in ((tmp_path / "file" / "job", tmp_path / "file"), ("/proc/x", "/proc/x")):
        code, _, err = say("export", engine, study, "--only", "fedavg", "--out", out)
        assert code == 1
        assert f"error: {where}" in err
        assert err.endswith("; name another folder with --out\n")
