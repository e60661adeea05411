"""The numbers and figures of the documentation are those of the published runs."""

import json
import math
import re
import statistics
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from scipy import stats

from autofedavg import cli
from autofedavg.evaluation import SIGNIFICANT, case_means, compare
from autofedavg.experiment.ledger import Ledger
from autofedavg.report.differences import differences_table
from autofedavg.report.figures.series import learns

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\d.])\d+\.\d\d(?![\d.])")


@pytest.fixture(scope="module")
def rebuild():
    spec = spec_from_file_location("rebuild", ROOT / "docs" / "rebuild.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_the_one_rebuilt(rebuild) -> None:
    for page in rebuild.PAGES:
        text = page.read_text()
        assert rebuild.BLOCK.search(text), page
        assert rebuild.rebuilt(text) == text, f"{page.name}: run python docs/rebuild.py"


def test_the_command_prints_the_same_table(rebuild, capsys) -> None:
    assert cli._main(["report", str(ROOT / "results" / "study-lgg"), "--format", "markdown"]) == 0
    assert rebuild.tables("study-lgg")["scores"] in capsys.readouterr().out


def test_numbers_in_the_text_are_in_the_tables(rebuild) -> None:
    """All that are written with two decimals, as the tables write them."""
    text = (ROOT / "docs" / "reproduction.md").read_text()
    studies = {study for _, study, _, _, _ in rebuild.BLOCK.findall(text)}
    known = "\n".join(table for study in studies for table in rebuild.tables(study).values())
    prose = rebuild.BLOCK.sub("", text)
    prose = re.sub(r"<!-- paper -->.*?<!-- /paper -->", "", prose, flags=re.DOTALL)
    found = NUMBER.findall(prose)
    assert len(found) > 5
    missing = [number for number in found if number not in NUMBER.findall(known)]
    assert not missing


def test_the_call_that_can_be_looked_at_alone() -> None:
    """The same models until and in round 10, averaged with even and with learned weights."""
    home = ROOT / "results" / "table1-cifar10"
    text = " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
    scores, parts, above, early, late, most = [], [], [], [], [], 0.0
    for seed in range(3):
        even, learned, size = (
            Ledger(home / row / f"seed-{seed}").rounds()
            for row in ("fedavg-even", "n-dirichlet", "fedavg")
        )
        above.append(100 * (learned[9]["test"]["mean"] - size[9]["test"]["mean"]))
        for one, other in zip(even[:9], learned[:9], strict=True):
            assert (one["loss"], one["test"]) == (other["loss"], other["test"])
        first, second = even[9], learned[9]
        assert first["loss"] == second["loss"]
        better = [second["test"]["sites"][k] > score for k, score in first["test"]["sites"].items()]
        parts.append(sum(better))
        scores.append(
            f"{100 * second['test']['mean']:.1f} against {100 * first['test']['mean']:.1f} %"
        )
        later = [
            100 * (mine["test"]["mean"] - other["test"]["mean"])
            for mine, other in zip(learned[19:], even[19:], strict=True)
        ]
        assert f"differ by {statistics.stdev(later):.1f} points as a rule" in text
        most = max(most, *map(abs, later))
        assert abs(statistics.fmean(later)) < 0.1  # "less than 0.1 on average"
        early.append(statistics.fmean(second["loss"].values()))
        late.append(statistics.fmean(learned[-1]["loss"].values()))
    assert f"by {math.ceil(10 * most) / 10} at most" in text
    assert f"is {min(above):.1f} to {max(above):.1f} points above FedAvg" in text
    counts = "{}, {} and {}".format(*parts)
    assert f"({', '.join(scores)}; better on {counts} of {len(better)} parts" in text
    means = (statistics.fmean(early), statistics.fmean(late))
    assert "is {:.3f} in round 10 and {:.3f} in the last".format(*means) in text


def test_chance_in_training_is_what_the_runs_say(rebuild) -> None:
    text, front = (
        " ".join((ROOT / page).read_text().split())
        for page in ("docs/reproduction.md", "README.md")
    )
    table1, lgg = rebuild.results("table1-cifar10"), rebuild.results("study-lgg")
    gains = gains_of(table1, "n-dirichlet")
    half = float(stats.t.ppf(0.975, len(gains) - 1)) * statistics.stdev(gains) / len(gains) ** 0.5
    below, half = f"{-statistics.fmean(gains):.1f}", f"{half:.1f}"
    assert f"is {below} points below FedAvg, with a 95 % interval of ± {half}" in text
    assert f"is {below} ± {half} points below FedAvg (three seeds, 95 % interval)" in front
    ends = [f"{100 * summary.global_test_avg:.1f}" for summary in table1.row("fedavg").summaries]
    assert "its three seeds end at {}, {} and {}".format(*ends) in text
    first, second = gains_of(lgg, "fedprox")
    for page in (text, front):
        assert f"stood {first:.1f} points above" in page
        assert f"{-second:.1f} below it with the other" in page
    pairs = {row: compare(*(case_means([one], "dice") for one in lgg.row(row).whole.values()))
             for row in ("fedavg-even", "n-softmax")}  # fmt: skip
    found = [f"{pair.p:.3f}" for pair in pairs.values()]
    assert "the same test gives p = {}, and of N-Softmax {}".format(*found) in text
    above = [row.name for row in lgg.rows if row.whole.keys() >= {0, 1} and learns(row)
             and min(gains_of(lgg, row.name)) > 0]  # fmt: skip
    assert above == ["l-softmax"]  # "alone is above with both seeds"
    rows = differences_table(lgg).rows
    tests = [cell.test.p for _, cells in rows for cell in cells[: len(lgg.sites)]]
    few = {3: "three"}[sum(p < SIGNIFICANT for p in tests)]
    assert f"Of the {len(tests)} tests at single sites {few} are below five percent" in text


def gains_of(study, name) -> list[float]:
    """Points above FedAvg, seed by seed."""
    return [
        100 * (mine.global_test_avg - other.global_test_avg)
        for mine, other in zip(
            study.row(name).summaries, study.row("fedavg").summaries, strict=True
        )
    ]


def test_every_figure_is_the_one_rebuilt(rebuild) -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    for file, (study, name) in rebuild.FIGURES.items():
        path = ROOT / "docs" / "img" / file
        assert path.read_text() == rebuild.figure(study, name), f"{file}: run docs/rebuild.py"


def test_every_published_run_is_whole_and_says_where_it_comes_from() -> None:
    runs = sorted((ROOT / "results").rglob("config.toml"))
    assert runs
    for config in runs:
        about = json.loads((config.parent / "environment.json").read_text())
        assert about["versions"]["torch"]
        assert json.loads((config.parent / "status.json").read_text())["state"] == "finished"
        assert (config.parent / "scores.csv.gz").is_file()
    assert not list((ROOT / "results").rglob("*.safetensors"))
