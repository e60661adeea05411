"""The Python code of the how-to pages runs as it stands."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, Training, federate
from autofedavg.core.seeds import Seeds

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


SHOWN = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, code in enumerate(blocks(page))
    if "import" in code
]


def first_block(name: str, folder: Path, monkeypatch):
    """The first block of a page, as a module."""
    (folder / f"{name.replace('-', '_')}.py").write_text(blocks(DOCS / "how-to" / f"{name}.md")[0])
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name.replace("-", "_"))


@pytest.mark.parametrize("code", SHOWN)
def test_names_that_pages_import_from_the_package_exist(code) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autofedavg"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, each.name) for each in node.names), ast.unparse(node)


def test_your_own_network(tmp_path) -> None:
    script = tmp_path / "own.py"
    script.write_text(blocks(DOCS / "how-to" / "own-network.md")[0])
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "round 4 of 4" in done.stdout


def test_a_method_of_your_own(tmp_path, monkeypatch) -> None:
    page = first_block("add-a-method", tmp_path, monkeypatch)

    def loader(cases: int) -> DataLoader:
        x = torch.randn(cases, 4, generator=torch.Generator().manual_seed(cases))
        return DataLoader(TensorDataset(x, (x.sum(dim=1) > 0).long()), batch_size=8)

    result = federate(
        lambda: nn.Linear(4, 2),
        lambda network, batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
        {name: LoaderSite(loader(n), loader(8)) for name, n in {"A": 36, "B": 16}.items()},
        lambda network, batch: (network(batch[0]).argmax(dim=1) == batch[1]).float(),
        method=page.FedAvgPower(power=0.5),
        training=Training(epochs=1),
        rounds=1,
        machine=Machine(workers=1),
    )
    assert result.alpha == pytest.approx({"A": 0.6, "B": 0.4})


def test_a_task_of_your_own(tmp_path, monkeypatch) -> None:
    page = first_block("add-a-task", tmp_path, monkeypatch)
    seen = []
    task = page.Points(cases=40, holdout=0.25)
    problem = task.problem(lambda *facts: seen.append(facts))
    assert list(problem.sites) == task.site_names()
    assert len(seen) == len(problem.sites)
    network = problem.network()
    for name, site in problem.sites.items():
        assert site.cases() == task.counts()[name]
        batches = list(site.train_batches(Seeds(0), 1, Training(epochs=1, batch_size=8)))
        again = list(site.train_batches(Seeds(0), 1, Training(epochs=1, batch_size=8)))
        assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again, strict=True))
        assert torch.isfinite(problem.loss(network, batches[0]))
        assert len(site.score(network, "test")) == 30
    assert task.describe()["split_sha256"] != page.Points(cases=44).describe()["split_sha256"]
