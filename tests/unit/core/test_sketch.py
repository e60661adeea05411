"""CountSketch: a public linear map that keeps inner products on average."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.bank import Layers
from autofedavg.core.sketch import Sketch


def drawn(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("most", [0, 50, 51, 10**6])
def test_what_fits_is_sent_as_it_is(most):
    x = drawn(50)
    sketch = Sketch.of(50, None, most)
    assert sketch.size == 50
    assert torch.equal(sketch.apply(x, 3), x)


@given(st.integers(1, 100), st.integers(1, 40), st.integers(0, 2**32))
def test_every_number_goes_with_a_sign_to_one_bucket(n, most, seed):
    sketch = Sketch.of(n, None, most)
    table = torch.stack([sketch.apply(row, seed) for row in torch.eye(n)])
    assert sketch.size == min(n, most)
    assert torch.equal(table.abs().sum(dim=1), torch.ones(n, dtype=torch.float64))
    fullest = table.abs().sum(dim=0).max()
    assert fullest <= -(-n // sketch.size)
    x = drawn(n)
    torch.testing.assert_close(sketch.apply(x, seed), x @ table)


def test_inner_products_are_right_on_average_and_spread_as_they_should():
    n, m, seeds = 2000, 64, 400
    x, y = drawn(n, 1), drawn(n, 2) + 0.2 * drawn(n, 1)
    sketch = Sketch.of(n, None, m)
    found = torch.stack(
        [sketch.inner(sketch.apply(x, s), sketch.apply(y, s)) for s in range(seeds)]
    ).flatten()
    error = float(found.std()) / math.sqrt(seeds)
    assert abs(float(found.mean() - x @ y)) < 3 * error
    expected = float(x.norm() * y.norm()) / math.sqrt(m)
    assert 0.85 < float(found.std()) / expected < 1.15


def test_numbers_at_the_same_place_of_every_row_do_not_meet_in_one_bucket():
    """Networks are periodic: without shifts, a channel's numbers would all share a bucket."""
    n, m, seeds = 32 * 32, 32, 200
    x, y = torch.zeros(2, n, dtype=torch.float64)
    x[::m], y[::m] = drawn(n // m, 1), drawn(n // m, 2)
    sketch = Sketch.of(n, None, m)
    pairs = [sketch.inner(sketch.apply(x, s), sketch.apply(y, s)) for s in range(seeds)]
    spread = float(torch.stack(pairs).std())
    assert spread < 2 * float(x.norm() * y.norm()) / math.sqrt(m)


def test_another_seed_is_another_map():
    sketch, x = Sketch.of(100, None, 10), drawn(100)
    assert torch.equal(sketch.apply(x, 1), sketch.apply(x, 1))
    assert not torch.equal(sketch.apply(x, 1), sketch.apply(x, 2))


# Four layers, the second in two pieces; statistics behind the trainable part belong to the first.
LAYERS = Layers(
    ("a", "b", "c", "d"),
    ((0, 4, 1), (4, 404, 0), (404, 410, 1), (410, 1210, 2), (1210, 1220, 3), (1220, 1240, 0)),
)


def test_layers_have_buckets_of_their_own_and_small_ones_are_exact():
    sketch = Sketch.of(1220, LAYERS, 120)
    assert [part.length for part in sketch.parts] == [400, 10, 800, 10]
    assert [part.exact for part in sketch.parts] == [False, True, False, True]
    assert sketch.size <= 120
    long = [part.buckets for part in sketch.parts if not part.exact]
    assert 1.8 < long[1] / long[0] < 2.2
    x, y = drawn(1220, 3), drawn(1220, 4)
    products = [
        sum(float(x[a:b] @ y[a:b]) for a, b in part.segments)
        for part in Sketch.of(1220, LAYERS, 0).parts
    ]
    exact = Sketch.of(1220, LAYERS, 0)
    whole = exact.inner(exact.apply(x, 0), exact.apply(y, 0))
    torch.testing.assert_close(whole, torch.tensor(products, dtype=torch.float64))
    seeds = [sketch.inner(sketch.apply(x, s), sketch.apply(y, s)) for s in range(300)]
    found = torch.stack(seeds)
    assert torch.equal(found[:, [1, 3]], found[:1, [1, 3]].expand(300, 2))
    torch.testing.assert_close(found[0, [1, 3]], whole[[1, 3]])
    error = found.std(dim=0) / math.sqrt(300) + 1e-12
    assert bool(((found.mean(dim=0) - whole).abs() < 3 * error).all())


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.integers(1, 300))
def test_no_layer_is_left_without_a_bucket(lengths, most):
    ends = [sum(lengths[: k + 1]) for k in range(len(lengths))]
    segments = tuple(
        (end - n, end, k) for k, (end, n) in enumerate(zip(ends, lengths, strict=True))
    )
    names = tuple(str(k) for k in range(len(lengths)))
    sketch = Sketch.of(sum(lengths), Layers(names, segments), most)
    assert all((part.buckets > 0) == (part.length > 0) for part in sketch.parts)
    assert sketch.size <= most + len(lengths)
    assert len(sketch.apply(drawn(sum(lengths)), 0)) == sketch.size
