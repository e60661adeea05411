"""The study behind `make demo`, run in full."""

from pathlib import Path

import pytest

from autofedavg import read_study, run_study
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table

DEMO = Path(__file__).parents[2] / "configs" / "demo.toml"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_federated_rows_beat_the_mean_of_local_training(tmp_path) -> None:
    table = scores_table(read_results([run_study(read_study(DEMO), tmp_path)]))
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
