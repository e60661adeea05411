"""What the README shows is run as it stands."""

import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from autofedavg import cli
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table, weights_table
from volumes import save_nifti

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
# What makes a command end in seconds; a later option takes the place of an earlier one.
SHORTER = ("--set", "rounds=1", "--set", "training.iterations=1", "--engine", "simulator")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def commands() -> list[str]:
    lines = "".join(blocks("sh")).splitlines()
    return [re.sub(r"\s+#.*", "", line) for line in lines]


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


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys) -> None:
    """In the order of the page, in a folder with the scans and the studies that it names."""
    rows = ["site,image,label"]
    random = np.random.RandomState(0)
    for site in "ab":
        for k in range(4):
            label = np.zeros((16, 16, 8), np.uint8)
            label[4:9, 4:9, 2:6] = 1
            image = (random.normal(100, 10, label.shape) + 50 * label).astype(np.float32)
            for what, values in (("image", image), ("label", label)):
                save_nifti(tmp_path / f"{site}{k}_{what}.nii.gz", values)
            rows.append(f"{site},{site}{k}_image.nii.gz,{site}{k}_label.nii.gz")
    (tmp_path / "scans.csv").write_text("\n".join(rows))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    ours = [shlex.split(line) for line in commands() if line.startswith("autofedavg ")]
    for _, verb, *rest in ours:
        more = SHORTER if verb == "run" else ()
        assert cli._main([verb, *rest, *more]) == 0, (verb, rest, capsys.readouterr().err)
    assert [verb for _, verb, *_ in ours] == ["data", "run", "run", "export"]
    assert (tmp_path / "look" / "inspection.html").is_file()
    assert (tmp_path / "runs" / "scans" / "n-dirichlet" / "seed-0" / "scores.csv").is_file()
    assert (tmp_path / "runs" / "demo" / "n-dirichlet" / "seed-0" / "scores.csv").is_file()
    assert (tmp_path / "job").is_dir()


def test_the_other_commands_of_the_readme() -> None:
    others = [line for line in commands() if not line.startswith("autofedavg ")]
    assert others == ["make demo", "pip install -e '.[report]'", "python -m autofedavg"]
    planned = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert planned.returncode == 0, planned.stderr
    assert "autofedavg run " in planned.stdout
    assert "autofedavg report " in planned.stdout
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.search(r"Further extras are (.*?)\.\n", README.read_text()).group(1)
    assert {"report", *re.findall(r"`(\w+)`", named)} == (
        extras["optional-dependencies"].keys() - {"dev", "docs"}
    )


def test_the_lines_that_the_readme_prints_are_in_the_demos_table() -> None:
    (block,) = re.findall(r"<!-- printed -->\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [re.split(r"\s{2,}", line) for line in block.splitlines()]
    table = TUTORIAL.read_text().replace(" ", "")
    for line in lines:
        cells = "|".join(re.sub(r"\*(\S+?)(†?)$", r"**\1**\2", cell) for cell in line)
        assert f"|{cells}|".replace(" ", "") in table, cells
    assert len(lines) == 3


def test_the_demos_table_is_that_of_the_published_runs() -> None:
    """Its rows that are published; marks are left out: they depend on the other rows."""
    demo = ROOT / "results" / "demo.zip"
    with zipfile.ZipFile(demo) as archive:
        rows = {name.split("/")[0] for name in archive.namelist() if "/seed-0/" in name}
    published = read_results([demo / row / "seed-0" for row in sorted(rows)])
    text = TUTORIAL.read_text()
    found = [
        re.sub(r"[*†]", "", line).replace(" ", "")
        for line in re.search(r"<!-- demo-table -->.*<!-- /demo-table -->", text, re.DOTALL)
        .group()
        .splitlines()
    ]
    for table, digits in ((scores_table(published), 2), (weights_table(published), 3)):
        assert len(table.rows) == 6
        for label, cells in table.rows:
            row = "|".join([label, *(f"{cell.value:.{digits}f}" for cell in cells)])
            assert f"|{row.replace(' ', '')}|" in found


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
