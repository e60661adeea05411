"""What the README shows is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_readme_runs_without_a_warning(code, tmp_path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=README.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_shows_python() -> None:
    assert blocks("python")


def test_the_demonstration_weighs_the_spoiled_site_least(capsys) -> None:
    from autofedavg.cli.demo import demonstrate

    results = demonstrate()
    shown = capsys.readouterr().out
    assert "Auto-FedAvg: weight of each site" in shown
    learned = results["Auto-FedAvg"]
    assert min(learned.alpha, key=learned.alpha.get) == "C, labels shuffled"
    average = {name: result.summary.global_test_avg for name, result in results.items()}
    assert average["Auto-FedAvg"] > average["FedAvg"]
    assert learned.network is not None
