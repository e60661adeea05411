"""The bench runs: every section, in its quick mode; one that fails does not stop the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
HERE = (
    "rounds", "steps", "step memory", "volumes", "round memory", "large data", "report", "gpu",
    "gpu volumes", "gpu methods", "federate", "many clients",
)  # fmt: skip
ENGINES = ("flare", "flower")  # they start servers and sites: a minute each


def ran(*arguments):
    """The bench as a process: warnings are errors there too."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=HOME,
        env={**os.environ, "PYTHONPATH": str(HOME / "src")},
        capture_output=True,
        text=True,
    )


def measured(tmp_path, *sections):
    """What the quick mode of these sections wrote down, by title."""
    out = tmp_path / "numbers.json"
    done = ran("-m", "bench", "--quick", "--json", str(out), "--only", *sections)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(out.read_text())
    assert content["environment"]["mode"].startswith("quick")
    assert len(content["sections"]) == len(sections)
    return {section["title"]: section for section in content["sections"]}, done.stdout


@pytest.mark.timeout(600)
def test_every_section_that_needs_no_engine_runs(tmp_path):
    sections, printed = measured(tmp_path, *HERE)
    for title, section in sections.items():
        on_gpu = "on a GPU" in title
        assert section["rows"] or on_gpu, title
        for row in section["rows"]:
            assert all(value > 0 for value in row["values"]), (title, row)
    empty = [title for title, section in sections.items() if not section["rows"]]
    assert printed.count("skipped: no CUDA device here") == len(empty)


def test_a_section_runs_where_the_engines_are_not_installed():
    program = (
        "import runpy, sys\n"
        "sys.modules.update(nvflare=None, flwr=None)\n"
        "sys.argv = ['bench', '--quick', '--only', 'gpu methods']\n"
        "runpy.run_module('bench', run_name='__main__')\n"
    )
    done = ran("-c", program)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_s_section_runs(tmp_path, engine):
    sections, _ = measured(tmp_path, engine)
    (section,) = sections.values()
    assert all(value > 0 for row in section["rows"] for value in row["values"])


BROKEN = """
import sys
import bench.__main__ as bench
from bench.table import Row, Section
from bench.timing import Sample

def broken():
    raise OSError("no such thing")

print(sorted(bench.FULL), sorted(bench.QUICK), sep=chr(10))
sound = lambda: Section("Sound", [Row("a number", Sample((1.0,)))])
bench.QUICK = {"rounds": broken, "steps": sound}
sys.argv = ["bench", "--quick"]
sys.exit(bench.main())
"""


def test_a_section_that_fails_names_itself_and_the_others_run():
    done = ran("-c", BROKEN)
    assert done.returncode == 1, done.stderr
    full, quick, *printed = done.stdout.splitlines()
    assert full == quick == repr(sorted((*HERE, *ENGINES)))  # so every section is run by a test
    table = "\n".join(printed)
    assert "Section 'rounds'\n  (failed: OSError: no such thing)" in table
    assert "a number" in table
    assert "failed: rounds" in printed
    assert "Traceback" in done.stderr
