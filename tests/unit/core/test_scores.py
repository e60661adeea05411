"""Scores in columns hold what they were given, whatever the order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.scores import Mean, MeanRow, ScoreRow, Scores

WORDS = st.sampled_from(["", "a", "b, c", 'd"', "e\nf"])
ROWS = st.lists(st.builds(ScoreRow, WORDS, WORDS, WORDS, WORDS, WORDS, st.floats(allow_nan=False)))


@given(ROWS)
def test_every_row_is_kept_once_and_those_of_a_column_in_their_order(rows) -> None:
    scores = Scores(rows)
    assert sorted(scores) == sorted(rows)
    assert len(scores) == len(rows)
    assert bool(scores) == bool(rows)
    for tested, column in scores.columns():
        mine = [row for row in rows if (row.model, row.site, row.split, row.metric) == tested]
        assert column.cases == [row.case for row in mine]
        assert list(column.values) == [row.value for row in mine]


@given(ROWS, st.permutations(ScoreRow._fields))
def test_lines_of_a_table_say_the_same(rows, heads) -> None:
    lines = [[str(getattr(row, name)) for name in heads] for row in rows]
    assert Scores.from_lines(heads, [[], *lines, []]) == Scores(rows)


@pytest.mark.parametrize(
    ("heads", "line", "error"),
    [
        (ScoreRow._fields[:-1], ["global", "A", "test", "a", "dice"], ValueError),
        (ScoreRow._fields, ["global", "A", "test", "a", "dice", "?"], ValueError),
        (ScoreRow._fields, ["global", "A", "test", "a"], IndexError),
    ],
    ids=["no column", "no number", "short"],
)
def test_other_lines_are_refused(heads, line, error) -> None:
    with pytest.raises(error):
        Scores.from_lines(heads, [line])


@given(ROWS, ROWS)
def test_joined_is_as_if_read_together(first, second) -> None:
    parts = Scores(first), Scores(second)
    together = Scores.joined(parts)
    assert together == Scores([*first, *second])
    assert (list(parts[0]), list(parts[1])) == (list(Scores(first)), list(Scores(second)))


@given(ROWS, WORDS, WORDS, WORDS)
def test_columns_are_those_asked_for(rows, model, metric, split) -> None:
    found = [
        ScoreRow(t.model, t.site, t.split, case, t.metric, value)
        for t, column in Scores(rows).columns(model, metric, split)
        for case, value in zip(*column, strict=True)
    ]
    wanted = [r for r in rows if (r.model, r.metric, r.split) == (model, metric, split)]
    assert sorted(found) == sorted(wanted)


def test_other_scores_are_not_equal_and_none_can_be_a_key() -> None:
    row = ScoreRow("global", "A", "test", "a", "dice", 0.5)
    assert Scores([row]) != Scores([row._replace(value=math.nextafter(0.5, 1))])
    assert Scores([row]) != Scores([row._replace(case="b")])
    assert Scores([row]) != [row]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Scores())


# --- means that sites disclosed -------------------------------------------------------------------

MEANS = st.lists(
    st.builds(MeanRow, WORDS, WORDS, WORDS, WORDS, st.floats(allow_nan=False), st.integers(1, 99))
)


@given(MEANS, st.permutations(MeanRow._fields))
def test_means_are_kept_and_read_back(rows, heads) -> None:
    scores = Scores(rows)
    assert sorted(scores) == sorted(rows)
    assert len(scores) == len(rows)
    lines = [[str(getattr(row, name)) for name in heads] for row in rows]
    assert Scores.from_lines(heads, [[], *lines]) == scores
    assert not list(scores.columns()), "there are no scores of cases"
    assert set(scores.groups) == {(r.model, r.site, r.split, r.metric) for r in rows}
    if rows:
        assert Scores(rows[:-1]) != scores


@given(MEANS, ROWS, MEANS)
def test_joined_means_are_as_if_read_together(first, cases, second) -> None:
    parts = [Scores(first), Scores(cases), Scores(second)]
    assert Scores.joined(parts) == Scores([*first, *cases, *second])


def test_means_are_those_asked_for() -> None:
    row = MeanRow("global", "A", "test", "dice", 0.5, 3)
    scores = Scores([row, row._replace(model="local-A"), row._replace(metric="dice:liver")])
    ((tested, means),) = scores.means("global", "dice", "test")
    assert (tested.site, means) == ("A", [Mean(0.5, 3)])
    assert not list(scores.means("global", "dice", "validation"))
