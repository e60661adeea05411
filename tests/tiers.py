"""What each test costs, and so in which tier it runs (CONTRIBUTING.md).

Tests of units, equations and contracts belong to the first tier. Files of `integration` and `e2e`
name their cost here; a test that needs a fixture which starts something has that cost by itself.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from xdist.scheduler import LoadScopeScheduling

QUICK = ""
COSTS = {
    "e2e/test_browsing.py": "browser",
    "e2e/test_claims.py": "published",
    "e2e/test_claims_on_hospitals.py": "published",
    "e2e/test_claims_on_messages.py": "published",
    "e2e/test_claims_on_skew.py": "published",
    "e2e/test_claims_on_tuning.py": "published",
    "e2e/test_claims_on_federations.py": "published",
    "e2e/test_claims_on_whichever.py": "published",
    "e2e/test_demo.py": "slow",
    "e2e/test_docs.py": QUICK,
    "e2e/test_how_to.py": "process",
    "e2e/test_page.py": "browser",
    "e2e/test_readme.py": "process",
    "e2e/test_results.py": "published",
    "e2e/test_site.py": "process",
    "e2e/test_which_method.py": "published",
    "integration/test_archive.py": "trains",
    "integration/test_at_once.py": "process",
    "integration/test_bad_runs.py": "trains",
    "integration/test_bench.py": "process",
    "integration/test_blind.py": "trains",
    "integration/test_calls_that_pay.py": "trains",
    "integration/test_ceiling.py": "trains",
    "integration/test_cifar10.py": "trains",
    "integration/test_command_line.py": "trains",
    "integration/test_compare.py": QUICK,
    "integration/test_crash_points.py": "trains",
    "integration/test_cut_files.py": QUICK,
    "integration/test_data_command.py": QUICK,
    "integration/test_disclose.py": "trains",
    "integration/test_engines.py": "engine",
    "integration/test_example_cases.py": "trains",
    "integration/test_exchange.py": "trains",
    "integration/test_export_job.py": QUICK,
    "integration/test_export_model.py": "export",
    "integration/test_export_use.py": "export",
    "integration/test_fedma.py": "trains",
    "integration/test_flaky_runs.py": "trains",
    "integration/test_flare.py": "engine",
    "integration/test_flare_faults.py": "engine",
    "integration/test_flare_how_to.py": "engine",
    "integration/test_flare_intruder.py": "engine",
    "integration/test_flare_job.py": "engine",
    "integration/test_flower.py": "engine",
    "integration/test_flower_app.py": "engine",
    "integration/test_flower_how_to.py": "engine",
    "integration/test_flower_job.py": "engine",
    "integration/test_guarded_engines.py": "engine",
    "integration/test_folds.py": "trains",
    "integration/test_hostile_folders.py": QUICK,
    "integration/test_hostile_links.py": "trains",
    "integration/test_hostile_names.py": "trains",
    "integration/test_inspect.py": "trains",
    "integration/test_interrupt.py": "process",
    "integration/test_job_runner.py": "trains",
    "integration/test_method_page.py": "trains",
    "integration/test_monai_import.py": "process",
    "integration/test_learning.py": "trains",
    "integration/test_lgg.py": "trains",
    "integration/test_lost_sites.py": "engine",
    "integration/test_no_paths.py": "trains",
    "integration/test_one_file_a_method.py": "process",
    "integration/test_other_package.py": "engine",
    "integration/test_out_folders.py": QUICK,
    "integration/test_overlap_on_gpu.py": "gpu",
    "integration/test_own_data.py": "trains",
    "integration/test_own_grid.py": "trains",
    "integration/test_own_models.py": "trains",
    "integration/test_personal.py": "trains",
    "integration/test_predict.py": "trains",
    "integration/test_predict_folder.py": "trains",
    "integration/test_private_runs.py": "trains",
    "integration/test_private_site.py": "process",
    "integration/test_public_ct.py": "trains",
    "integration/test_methods_on_engines.py": "trains",
    "integration/test_remote.py": "trains",
    "integration/test_replays_on_gpu.py": "gpu",
    "integration/test_report_families.py": QUICK,
    "integration/test_report_figures.py": QUICK,
    "integration/test_report_learning.py": QUICK,
    "integration/test_report_many_sites.py": QUICK,
    "integration/test_report_page.py": QUICK,
    "integration/test_report_paying.py": QUICK,
    "integration/test_report_seeds.py": QUICK,
    "integration/test_report_studies.py": QUICK,
    "integration/test_report_tables.py": QUICK,
    "integration/test_report_targets.py": QUICK,
    "integration/test_report_unfinished.py": QUICK,
    "integration/test_report_tested.py": QUICK,
    "integration/test_resume_after_kill.py": "process",
    "integration/test_resume_study.py": "trains",
    "integration/test_rows_of_another_study.py": "trains",
    "integration/test_secret.py": "trains",
    "integration/test_select.py": "trains",
    "integration/test_serve.py": "process",
    "integration/test_serve_in_browser.py": "browser",
    "integration/test_server_data.py": "trains",
    "integration/test_setting_figures.py": QUICK,
    "integration/test_show_models.py": "trains",
    "integration/test_site_service.py": "trains",
    "integration/test_stored_states.py": "trains",
    "integration/test_stacked_on_gpu.py": "gpu",
    "integration/test_studies.py": QUICK,
    "integration/test_synthetic.py": "trains",
    "integration/test_tiny.py": QUICK,
    "integration/test_tracking.py": "trains",
    "integration/test_traffic.py": "trains",
    "integration/test_trained.py": "trains",
    "integration/test_tune.py": "trains",
    "integration/test_version_0_1.py": "trains",
    "integration/test_watch.py": "process",
    "integration/test_wheel.py": "process",
}
UNITS = {
    "unit/engines/test_flower_control.py": "process",
    "unit/engines/test_processes.py": "process",
}
BY_FIXTURE = {"browser": "browser", "command": "process", "serving": "process", "start": "process",
              "tiny_trained": "trains"}  # fmt: skip
COSTLY = {"browser", "engine", "export", "process", "published", "slow", "trains"}
LONG = ("engine", "published", "process", "browser")  # in this order
PROGRAMS = ("python", "autofedavg", "chromium", "flower-", "flwr", "nvflare")
TESTS = Path(__file__).parent


def mark(items: list[pytest.Item]) -> None:
    """Gives every test the marks of its file and of the fixtures it uses."""
    for item in items:
        path = item.path
        name = path.relative_to(TESTS).as_posix() if TESTS in path.parents else ""
        if cost := COSTS.get(name) or UNITS.get(name):
            item.add_marker(cost)
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in BY_FIXTURE:
                item.add_marker(BY_FIXTURE[fixture])


def in_order(items: list[pytest.Item]) -> None:
    """Puts files that take long first: workers in parallel then end at the same time."""
    ranks: dict[Path, int] = {}
    for item in items:
        found = (n for n, name in enumerate(LONG) if item.get_closest_marker(name))
        ranks[item.path] = min(ranks.get(item.path, len(LONG)), *found, len(LONG))
    items.sort(key=lambda item: ranks[item.path])


def scope_of(nodeid: str) -> str:
    """Which tests one worker runs: those of a file, and all that read the published results.

    The latter share the rebuilt tables, which take most of a minute.
    """
    name = nodeid.partition("::")[0]
    return "published" if COSTS.get(name.removeprefix("tests/")) == "published" else name


class ByScope(LoadScopeScheduling):
    """Workers in parallel, each with the tests of one scope at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def is_costly(item: pytest.Item) -> bool:
    """Whether the first tier leaves this test out."""
    return any(item.get_closest_marker(name) for name in COSTLY)


@contextmanager
def without_programs() -> Iterator[None]:
    """Refuses to start an interpreter, an engine or a browser: such tests are not of tier one."""
    start = subprocess.Popen.__init__

    def checked(self: subprocess.Popen[bytes], args: object, *rest: object, **how: object) -> None:
        command = [args] if isinstance(args, str) else list(args)  # type: ignore[call-overload]
        if Path(str(command[0])).name.startswith(PROGRAMS):
            pytest.fail(f"starts {command[0]}: mark this test `process` (tests/tiers.py)")
        start(self, args, *rest, **how)  # type: ignore[call-overload]

    with patch.object(subprocess.Popen, "__init__", checked):
        yield
