"""What tests of the documentation's claims work out of published runs."""

import statistics
from pathlib import Path

from scipy import stats

from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.folder import Ledger

ROOT = Path(__file__).parents[1]


def published(study: str) -> Path:
    """The folder of a published study: its archive, unpacked once in a process."""
    return as_folder(ROOT / "results" / f"{study}.zip")


def words(page: str) -> str:
    """A page's text, wherever its lines end."""
    return " ".join((ROOT / page).read_text().split())


def late_scores(run: Path, since: int = 20) -> float:
    """Mean test score of the rounds from one on, in percent."""
    return statistics.fmean(
        100 * line["test"]["mean"] for line in Ledger(run).rounds() if line["t"] >= since
    )


def half_interval(values) -> float:
    """Half of the 95 % interval of a mean, by Student's t."""
    t = float(stats.t.ppf(0.975, len(values) - 1))
    return t * statistics.stdev(values) / len(values) ** 0.5


def gains_of(study, name, other="fedavg") -> list[float]:
    """Points above FedAvg, or another row, seed by seed."""
    pairs = zip(study.row(name).summaries, study.row(other).summaries, strict=True)
    return [100 * (mine.global_test_avg - theirs.global_test_avg) for mine, theirs in pairs]
