"""Tables from hand-made results: what is bold, daggered, spread, missing or escaped."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from autofedavg.core.scores import ScoreRow, Scores
from autofedavg.report.differences import differences_table
from autofedavg.report.formats import to_csv, to_json, to_latex, to_markdown, to_text
from autofedavg.report.repeats import Repeat, Results, Row
from autofedavg.report.seed_gains import seeds_table
from autofedavg.report.tables import personal_table, scores_table, weights_table, worst_table

EVIL = "S & <b>_1|*"
CASES = 8


def repeat(seed: int, gain: float, *, state: str = "finished", alpha=(0.4, 0.6)) -> Repeat:
    """A run whose global score on case c is 0.5 + 0.01 c + gain, local ones fixed."""
    scores = [
        ScoreRow("global", site, "test", f"case-{c}", "dice", 0.5 + 0.01 * c + gain * (c + 1))
        for site in ("A", EVIL)
        for c in range(CASES)
    ]
    matrix = {("A", "A"): 0.8, ("A", EVIL): 0.4, (EVIL, "A"): 0.2, (EVIL, EVIL): 0.6}
    scores += [
        ScoreRow(f"local-{model}", site, "test", "case-0", "dice", value)
        for (model, site), value in matrix.items()
    ]
    rounds = [{"t": 1, "alpha": list(alpha) if alpha else None}]
    config = {"method": {"learn_on": "validation"}}
    return Repeat(Path("x"), seed, None, state, config, {}, rounds, Scores(scores))


def results(*rows: Row) -> Results:
    return Results("A title", rows, "base", {"A": 20, EVIL: 10})


def row(name: str, label: str, *repeats: Repeat) -> Row:
    return Row(name, label, repeats, "dice")


@pytest.fixture
def two_rows() -> Results:
    return results(
        row("base", "Base", repeat(0, 0.0), repeat(1, 0.002)),
        row("better", "Better", repeat(0, 0.01), repeat(1, 0.012)),
    )


def test_personal_models_have_a_table_where_there_are_any(two_rows) -> None:
    assert personal_table(two_rows) is None
    base, better = two_rows.rows
    (first, *_) = better.repeats
    own = [
        ScoreRow(f"personal-{site}", site, "test", f"case-{c}", "dice", value)
        for site, value in (("A", 0.9), (EVIL, 0.7))
        for c in range(CASES)
    ]
    scores = Scores.joined([first.scores, Scores(own)])
    table = personal_table(results(base, replace(better, repeats=(replace(first, scores=scores),))))
    assert table.heads == ("global test avg", "worst site", "personal avg", "personal worst")
    (_, plain), (_, personal) = table.rows
    assert [cell.value for cell in plain[2:]] == [None, None]
    assert [cell.value for cell in personal] == pytest.approx([58, 58, 80, 70])
    assert personal[2].best


def test_means_spread_daggers_and_best(two_rows) -> None:
    table = scores_table(two_rows)
    (_, base), (_, better) = table.rows
    at_base = [100 * (0.535 + gain * 4.5) for gain in (0.0, 0.002)]
    assert base[0].value == pytest.approx(sum(at_base) / 2)
    assert base[2].spread == pytest.approx(abs(at_base[1] - at_base[0]) / 2**0.5)
    assert base[0].spread is not None
    assert not base[0].show_spread
    assert base[2].show_spread
    assert base[0].test is None
    assert better[0].test.dagger
    assert better[0].test.p == pytest.approx(2 / 2**CASES)
    assert better[2].test.n == 2 * CASES
    assert better[0].best
    assert not base[0].best
    assert base[3].value == pytest.approx(70)
    assert base[4].value == pytest.approx(30)


def test_a_worse_method_gets_no_dagger() -> None:
    table = scores_table(results(row("base", "Base", repeat(0, 0.01)), row("w", "W", repeat(0, 0))))
    worse = table.rows[1][1][0]
    assert worse.test.p < 0.05
    assert not worse.test.dagger


def test_every_format_shows_the_same_numbers_and_escapes_names(two_rows) -> None:
    table = scores_table(two_rows)
    value = f"{table.rows[1][1][0].value:.2f}"
    text, markdown, latex = to_text(table), to_markdown(table), to_latex(table)
    assert f"*{value}†" in text
    assert f"**{value}**†" in markdown
    assert rf"\textbf{{{value}}}$^\dagger$" in latex
    assert r"S & \<b\>\_1\|\*" in markdown
    assert r"S \& $<$b$>$\_1|*" in latex
    parsed = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert float(parsed[1]["A (n=20)"]) == table.rows[1][1][0].value
    assert float(parsed[1]["A (n=20) p"]) == table.rows[1][1][0].test.p
    assert parsed[0]["A (n=20) p"] == ""
    assert json.loads(to_json(table))["rows"][0]["row"] == "Base"


def test_a_row_without_a_finished_run_is_shown_empty() -> None:
    table = scores_table(
        results(row("base", "Base", repeat(0, 0.0)), row("x", "X", repeat(3, 0.0, state="failed")))
    )
    assert all(cell.value is None for cell in table.rows[1][1])
    assert "X, seed 3: failed, not counted." in table.notes


def test_local_only_becomes_one_row_per_site() -> None:
    local = repeat(0, 0.0, alpha=None)
    scores = Scores(score for score in local.scores if score.model != "global")
    only = Repeat(local.folder, 0, None, "finished", local.config, {}, local.rounds, scores)
    table = scores_table(results(row("local", "Local", only), row("base", "Base", repeat(0, 0.0))))
    labels = [label for label, _ in table.rows]
    assert labels == ["Local - A", f"Local - {EVIL}", "Base"]
    first, second = table.rows[0][1], table.rows[1][1]
    assert [cell.value for cell in first[:3]] == pytest.approx([80, 40, 60])
    assert first[3].value is None
    assert second[3].value == pytest.approx(70)


def test_weights_table_averages_layers_and_leaves_out_rows_without_weights() -> None:
    layered = repeat(0, 0.0, alpha=([0.2, 0.4], [0.8, 0.6]))
    plain = repeat(0, 0.0, alpha=None)
    table = weights_table(results(row("l", "L", layered), row("p", "P", plain)))
    assert [label for label, _ in table.rows] == ["L"]
    assert [cell.value for cell in table.rows[0][1]] == pytest.approx([0.3, 0.7])
    assert weights_table(results(row("p", "P", plain))) is None


def test_repeats_above_are_counted_seed_by_seed() -> None:
    """The mean is far ahead by one lucky seed; two seeds of three are behind."""
    base = row("base", "Base", *(repeat(seed, 0.0) for seed in (0, 1, 2, 7)))
    lucky = row("lucky", "Lucky", repeat(0, -0.001), repeat(1, 0.04), repeat(2, -0.001))
    once = row("once", "Once", repeat(0, 0.01), repeat(5, 0.01))  # one seed with the baseline
    table = differences_table(results(base, lucky, once))
    assert table is not None
    assert table.heads == ("A", EVIL, "all sites", "repeats above")
    found = {label: cells[-1].text for label, cells in table.rows}
    assert found == {"Lucky": "1 of 3", "Once": ""}
    assert "Repeats above" in table.notes[-1]


def test_single_repeats_have_no_such_column() -> None:
    table = differences_table(
        results(row("base", "B", repeat(0, 0.0)), row("m", "M", repeat(0, 0.01)))
    )
    assert table is not None
    assert table.heads == ("A", EVIL, "all sites")
    assert [len(cells) for _, cells in table.rows] == [3]
    assert not any("Repeats above" in message for message in table.notes)


def by_site(seed: int, **means: float) -> Repeat:
    """A run whose global model has these scores at A and at EVIL."""
    sites = {"A": means["a"], EVIL: means["evil"]}
    scores = [
        ScoreRow("global", site, "test", f"case-{c}", "dice", mean)
        for site, mean in sites.items()
        for c in range(CASES)
    ]
    return replace(repeat(seed, 0.0), scores=Scores(scores))


def test_the_worst_site_is_found_in_every_repeat_by_itself() -> None:
    """Its mean is below that of the site which is worst on average."""
    steady = row("s", "Steady", by_site(0, a=0.5, evil=0.7), by_site(1, a=0.4, evil=0.9))
    changing = row("c", "Changing", by_site(0, a=0.5, evil=0.7), by_site(1, a=0.9, evil=0.6))
    often = row(
        "o", "Often", *(by_site(seed, a=0.6, evil=0.5 + 0.2 * (seed == 2)) for seed in (0, 1, 2))
    )
    table = worst_table(results(steady, changing, often))
    found = dict(table.rows)
    assert [cell.value for cell in found["Steady"][:3]] == pytest.approx([62.5, 45.0, 17.5])
    assert [cell.value for cell in found["Changing"][:3]] == pytest.approx([67.5, 55.0, 12.5])
    assert [cells[3].text for cells in found.values()] == ["A", "varies", f"{EVIL} in 2 of 3"]
    assert [cells[1].best for cells in found.values()] == [False, True, False]
    assert not any(cells[2].best for cells in found.values())
    assert next(csv.DictReader(io.StringIO(to_csv(table))))["which site"] == "A"


def test_a_single_site_has_no_worst_one() -> None:
    scores = Scores(ScoreRow("global", "A", "test", "case-0", "dice", x) for x in (0.5,))
    alone = replace(repeat(0, 0.0), scores=scores)
    assert worst_table(Results("A title", (row("b", "B", alone),), "b", {"A": 9})) is None


def test_differences_over_seeds_have_intervals_and_are_corrected() -> None:
    """4.5 points of the gain a case; Better gains 1, 2 and 3 points, Same nothing."""
    base = row("base", "Base", *(repeat(seed, 0.0) for seed in (0, 1, 2)))
    better = row("better", "Better", *(repeat(s, (s + 1) / 450) for s in (0, 1, 2)))
    same = row("same", "Same", *(repeat(seed, 0.0) for seed in (0, 1, 2)))
    once = row("once", "Once", repeat(0, 0.01))
    table = seeds_table(results(base, better, same, once))
    found = {label: [cell.value for cell in cells] for label, cells in table.rows}
    assert list(found) == ["Better", "Same"]
    wanted = [3, 2.0, -0.4841, 4.4841, 0.07418, 0.14836]
    assert found["Better"] == pytest.approx(wanted, abs=1e-4)
    assert found["Same"] == pytest.approx([3, 0.0, 0.0, 0.0, 1.0, 1.0])
    assert "above Base: none, and below Base: none" in table.notes[1]
    assert seeds_table(results(better, same)) is None
    assert seeds_table(results(base, once)) is None
