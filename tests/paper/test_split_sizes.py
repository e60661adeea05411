"""Sec. 4.2.1 and 4.3: the sizes of the splits, and the committed files that have them."""

from collections import Counter

import pytest

from autofedavg.tasks.archives.covid import Covid
from autofedavg.tasks.archives.pancreas import Pancreas
from autofedavg.tasks.archives.sources import in_drawn_order, read_cases
from split_rule import divided, shared_out, split_sizes

TWINS = ["PANCREAS_0002", "PANCREAS_0025", "PANCREAS_0070"]
PAPER = {"MSD": (95, 93, 93), "TCIA": (28, 27, 27), "BTCV": (10, 10, 10)}


@pytest.mark.parametrize(
    ("n", "rule", "sizes"),
    [
        (671, "two-thirds", (447, 112, 112)),
        (88, "thirds", (30, 29, 29)),
        (186, "two-thirds", (124, 31, 31)),
        (281, "thirds", (95, 93, 93)),
        (82, "thirds", (28, 27, 27)),
        (30, "thirds", (10, 10, 10)),
    ],
)
def test_the_papers_sizes(n, rule, sizes) -> None:
    assert split_sizes(n, rule) == sizes


def counted(task: str) -> dict[str, tuple[int, ...]]:
    found = Counter((known.site, known.split) for known in read_cases(task))
    sites = dict.fromkeys(known.site for known in read_cases(task))
    return {s: tuple(found[s, split] for split in ("train", "validation", "test")) for s in sites}


def test_the_committed_pancreas_split_has_the_papers_sizes() -> None:
    assert counted("pancreas") == PAPER
    assert sum(map(sum, PAPER.values())) == len({known.case for known in read_cases("pancreas")})


def test_the_committed_covid_split_has_the_papers_proportions() -> None:
    clients = shared_out(199, (671, 88, 186))
    rules = ("two-thirds", "thirds", "two-thirds")
    sizes = [split_sizes(n, rule) for n, rule in zip(clients, rules, strict=True)]
    assert counted("covid") == dict(zip(("I", "II", "III"), sizes, strict=True))
    assert sizes == [(93, 24, 24), (7, 6, 6), (25, 7, 7)]
    assert len({known.case for known in read_cases("covid")}) == 199


def test_nobody_chose_the_cases_of_the_pancreas() -> None:
    """The committed file is the documented rule and nothing else."""
    known = read_cases("pancreas")
    for site in PAPER:
        cases = [k.case for k in known if k.site == site]
        first = [case for case in TWINS if case in cases]
        rest = [case for case in in_drawn_order("pancreas", cases) if case not in first]
        expected = divided(first + rest, "thirds")
        assert {k.case: k.split for k in known if k.site == site} == expected


def test_nobody_chose_the_cases_of_covid() -> None:
    known = read_cases("covid")
    order = iter(in_drawn_order("covid", [k.case for k in known]))
    for (site, n), rule in zip(
        Counter(k.site for k in known).items(), ("two-thirds", "thirds", "two-thirds"), strict=True
    ):
        expected = divided([next(order) for _ in range(n)], rule)
        assert {k.case: k.split for k in known if k.site == site} == expected


def test_the_three_copies_of_one_scan_stand_in_one_split_and_two_are_never_used() -> None:
    twins = {k.case: k for k in read_cases("pancreas") if k.case in TWINS}
    assert {k.split for k in twins.values()} == {"train"}
    assert {k.case for k in twins.values() if k.withdrawn} == set(TWINS[1:])
    used = {known.case for known in Pancreas().known()}
    assert len(used) == 391
    assert used & set(TWINS) == {"PANCREAS_0002"}


@pytest.mark.parametrize("task", [Covid, Pancreas])
def test_every_committed_case_is_named_as_its_source_names_cases(task) -> None:
    for known in read_cases(task().name):
        source = task().sources[known.site]
        name = source.named(source.image, known.case)
        assert source._ends(source.image).fullmatch(name), known
        number = source._ends(source.image).fullmatch(name)[1]
        assert source.case.format(number) == known.case
