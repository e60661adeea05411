"""The study behind `make demo`, run in full."""

from pathlib import Path

import pytest

from autofedavg import read_study, run_study
from autofedavg.report.build import build_report
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table
from browsing import check_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return run_study(read_study("demo"), tmp_path_factory.mktemp("demo"))


def test_federated_rows_beat_the_mean_of_local_training(home) -> None:
    table = scores_table(read_results([home]))
    column = table.heads.index("global test avg")
    averages = {label: cells[column].value for label, cells in table.rows}
    local = [value for label, value in averages.items() if label.startswith("Local only")]
    federated = [value for label, value in averages.items() if not label.startswith("Local only")]
    assert len(local) == 3
    assert len(federated) == 7
    assert min(federated) > sum(local) / 3
    gen = table.heads.index("local gen")
    cells = dict(table.rows)
    assert cells["FedAvg"][gen].value > cells["Local only - II"][gen].value


@pytest.mark.browser
def test_its_page_in_a_browser(home, open_page, tmp_path) -> None:
    page_file = build_report([home]).write(tmp_path)
    page = open_page(page_file)
    page.locator("html[data-drawn]").wait_for(state="attached")
    check_page(page, page_file)
