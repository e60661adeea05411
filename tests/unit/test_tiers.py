"""Every test knows what it costs."""

import re
import subprocess
import sys

import pytest

from tiers import COSTLY, COSTS, QUICK, TESTS, UNITS, scope_of, without_programs


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


def test_one_worker_has_all_of_the_published_results_and_another_file_for_each():
    ids = {name: f"tests/{name}::test_a[x::y]" for name in COSTS}
    shared = {scope_of(ids[name]) for name, cost in COSTS.items() if cost == "published"}
    assert shared == {"published"}
    others = [name for name, cost in COSTS.items() if cost != "published"]
    assert [scope_of(ids[name]) for name in others] == [f"tests/{name}" for name in others]


def test_files_that_run_untraced_are_there():
    """pytest says nothing of a file to ignore that does not exist."""
    text = (TESTS.parent / "Makefile").read_text().replace("\\\n", "")
    (names,) = re.findall(r"^UNTRACED := (.+)$", text, flags=re.MULTILINE)
    (rooms,) = re.findall(r"^TRACED := (.+)$", text, flags=re.MULTILINE)
    assert len(names.split()) > 1
    for name in names.split():
        assert (TESTS / f"{name}.py").is_file(), name
        assert f"tests/{name.split('/')[0]}" in rooms.split()
