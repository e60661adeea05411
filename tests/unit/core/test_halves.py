"""Two halves of a site's cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import DataError
from autofedavg.core.halves import half_of, half_size
from autofedavg.core.seeds import Seeds


@given(st.integers(0, 2**31), st.text(min_size=1, max_size=8), st.integers(2, 200))
def test_every_case_is_in_one_half_and_the_halves_are_as_large_as_they_can_be(seed, site, n):
    one, two = (half_of(Seeds(seed), site, n, half) for half in (0, 1))
    assert sorted([*one, *two]) == list(range(n))
    assert (len(one), len(two)) == (half_size(n, 0), half_size(n, 1))
    assert 0 <= len(one) - len(two) <= 1
    assert one == sorted(one)
    assert one == half_of(Seeds(seed), site, n, 0)


def test_sites_and_seeds_have_halves_of_their_own():
    found = {tuple(half_of(Seeds(s), site, 40, 0)) for s in (0, 1) for site in ("A", "B")}
    assert len(found) == 4


@pytest.mark.parametrize(("n", "half"), [(0, 0), (1, 0), (1, 1), (8, 2), (8, -1)])
def test_too_few_cases_and_other_halves_are_refused(n, half):
    with pytest.raises(DataError, match=f"site A: {n} cases have no half {half}; give every site"):
        half_of(Seeds(0), "A", n, half)
