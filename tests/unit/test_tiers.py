"""Every test knows what it costs."""

import subprocess
import sys

import pytest

from tiers import COSTLY, COSTS, QUICK, TESTS, UNITS, without_programs


def test_every_file_of_the_later_tiers_names_its_cost_and_is_there():
    there = {
        path.relative_to(TESTS).as_posix()
        for folder in ("integration", "e2e")
        for path in (TESTS / folder).glob("test_*.py")
    }
    assert there == set(COSTS)
    assert all((TESTS / name).is_file() for name in UNITS)
    assert set(COSTS.values()) <= {QUICK, "gpu", *COSTLY}


def test_tier_one_starts_no_interpreter():
    with pytest.raises(pytest.fail.Exception, match="mark this test `process`"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with without_programs():
        assert subprocess.run(["true"], check=True).returncode == 0
