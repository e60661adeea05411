"""A site's ledger on disk: whole, shared by processes, and the limit of the site's file."""

import json
import os
from pathlib import Path

import pytest

from autofedavg.core.accountant import epsilon
from autofedavg.core.errors import ConfigError
from autofedavg.engines.remote.site_files import SitePrivacy, read_site_file
from autofedavg.engines.remote.site_ledger import FileLedger
from autofedavg.federation.ledger import BudgetError, Entry, Limit

FIRST = Entry("job", "local_train", 1, 0, "train", 0.1, 2.0, 50, "digest-1")


def next_one(t: int) -> Entry:
    return FIRST._replace(t=t, digest=f"digest-{t}")


def test_what_one_process_spends_the_next_one_knows(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    before = os.umask(0)
    try:
        FileLedger(path, Limit()).spend(FIRST)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == FIRST._asdict()
    again = FileLedger(path, Limit())
    assert again.epsilon() == epsilon(0.1, 2.0, 50, 1e-3)
    again.spend(FIRST)
    assert path.read_text().count("\n") == 1


def test_processes_share_a_ledger(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    one, other = (FileLedger(path, Limit(epsilon(0.1, 2.0, 120, 1e-3))) for _ in range(2))
    one.spend(next_one(1))
    other.spend(next_one(2))
    with pytest.raises(BudgetError, match="budget is spent"):
        one.spend(next_one(3))
    one.spend(next_one(2))
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_half_a_line_is_cut_off_and_the_rest_holds(tmp_path: Path, cut: int):
    path = tmp_path / "privacy.jsonl"
    FileLedger(path, Limit()).spend(FIRST)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut].replace(b"digest-1", b"digest-2"))
    ledger = FileLedger(path, Limit())
    assert path.read_bytes() == whole
    ledger.spend(next_one(2))
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_damaged_ledger_is_refused(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    path.write_text('{"job": 1}\n')
    with pytest.raises(ConfigError, match="what was released cannot be taken back"):
        FileLedger(path, Limit())
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be written"):
        FileLedger(path, Limit())


def test_the_limit_is_in_the_sites_own_file(tmp_path: Path):
    file = tmp_path / "autofedavg.toml"
    file.write_text("[privacy]\nepsilon = 8.0\ndelta = 1e-4\n")
    found = read_site_file(file).privacy
    assert found.limit() == Limit(8.0, 1e-4, "refuse")
    assert found.covers == "all"
    assert SitePrivacy(replays="count").limit().replays == "count"
    file.write_text("[privacy]\nepsilonn = 8.0\n")
    with pytest.raises(ConfigError, match="did you mean epsilon"):
        read_site_file(file)
