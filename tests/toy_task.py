"""A few sites and a small classifier as a task of another package.

Processes that are started find it without pip. None of them imports MONAI, which is most of what a
message costs on an engine that starts a process for each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from torch import nn

from autofedavg.core.problem import Problem
from autofedavg.tasks.base import Progress, Task
from toy import METRIC, mlp, norm_net, toy_problem

STUDY = """
[study]
name = "toys"

[base]
rounds = 1
test_local = "none"

[base.task]
name = "toy-sites"

[base.training]
iterations = 3
batch_size = 4
learning_rate = 3e-3
"""


class ToySites(Task):
    """Points around centres that differ from site to site."""

    name: Literal["toy-sites"] = "toy-sites"
    sites: int = 2
    normalised: bool = True  # per-case gradients need a network without batch normalisation
    metric = METRIC
    private_names = False

    def site_names(self) -> list[str]:
        return list("ABCDEFGH"[: self.sites])

    def network(self) -> nn.Module:
        return norm_net() if self.normalised else mlp()

    def problem(self, progress: Progress | None = None) -> Problem:
        return toy_problem(self.sites, norm_net if self.normalised else mlp)

    def where(self) -> str:
        return "drawn from fixed seeds"

    def memory(self) -> int:
        return 0

    def describe(self) -> dict[str, Any]:
        cases = {site: {} for site in self.site_names()}
        return {"data": "toys", "cases": cases, "split_sha256": "toys"}


def install(folder: Path) -> str:
    """Writes what an installed package has beside its code: the value of PYTHONPATH to find it."""
    about = folder / "toy_sites-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-sites\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[autofedavg.tasks]\ntoy-sites = toy_task:ToySites\n")
    paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))
