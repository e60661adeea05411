"""A site's secret and key: drawn once, for its user alone, and in a known place."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autofedavg.core.errors import ConfigError
from autofedavg.engines.remote.site_files import SiteState, state_home
from synced import synced_to


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_secret_is_drawn_once_and_for_its_user_alone(tmp_path):
    before = os.umask(0)  # whatever the user's is
    try:
        first = SiteState(tmp_path / "state", "north").salted("a")
        SiteState(tmp_path / "state", "north").keep_names("test", "0", {"patient": "test-0001"})
    finally:
        os.umask(before)
    assert SiteState(tmp_path / "state", "north").salted("a") == first
    assert SiteState(tmp_path / "state", "north").salted("b") != first
    assert SiteState(tmp_path / "state", "south").salted("a") != first
    assert SiteState(tmp_path / "state", "north").salted("") == ""
    folder = tmp_path / "state" / "north"
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "secret": 0o600,
        "cases-test-0.csv": 0o600,
    }


def test_the_secret_is_on_the_disk_before_it_is_used(tmp_path, monkeypatch):
    """Another one after a loss of power would repeat requests with other noise."""
    found = synced_to(monkeypatch)
    state = SiteState(tmp_path, "north")
    state.salted("a")
    assert found == [("secret", (state.folder / "secret").read_bytes()), ("north", b"")]
    state.salted("b")
    assert len(found) == 2


def test_processes_that_begin_together_have_one_secret(tmp_path):
    with ThreadPoolExecutor(8) as plan:
        found = set(plan.map(lambda _: SiteState(tmp_path, "north").salted("a"), range(64)))
    assert len(found) == 1


@pytest.mark.parametrize("name", ["../../etc", "", ".", "..", "a/b", "ü" * 90, "x" * 300, "a\n"])
def test_any_site_s_name_has_a_folder_below(name, tmp_path):
    SiteState(tmp_path / "state", name).salted("a")
    (folder,) = (tmp_path / "state").iterdir()
    assert folder.name.startswith("site-")
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


@pytest.mark.parametrize("shared", ["folder", "secret"])
def test_what_others_may_read_is_refused(shared, tmp_path):
    state = SiteState(tmp_path, "north")
    state.salted("a")
    (state.folder if shared == "folder" else state.folder / "secret").chmod(0o740)
    with pytest.raises(ConfigError, match=r"north.*: other users may read"):
        state.salted("a")


def test_a_link_a_damaged_secret_and_a_place_that_cannot_be_written_are_refused(tmp_path):
    state = SiteState(tmp_path / "state", "north")
    state.salted("a")
    secret = state.folder / "secret"
    secret.write_bytes(b"short")
    with pytest.raises(ConfigError, match="32 random bytes, and has 5"):
        state.salted("a")
    secret.rename(tmp_path / "other")
    secret.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="cannot be written"):
        state.salted("a")
    assert (tmp_path / "other").read_bytes() == b"short"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .*set `state` .* AUTOFEDAVG_STATE"):
        SiteState(tmp_path / "file", "north").salted("a")


def test_where_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("AUTOFEDAVG_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_home() == tmp_path / ".local/state/autofedavg"
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert state_home() == Path("/xdg/autofedavg")
    monkeypatch.setenv("AUTOFEDAVG_STATE", "/told")
    assert state_home() == Path("/told")
    assert state_home("/chosen") == Path("/chosen")


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch):
    monkeypatch.delenv("AUTOFEDAVG_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match=r"no home folder.*`state` in the site's file"):
        state_home()
