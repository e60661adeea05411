"""Encodings of models: how far off they are, and that both ends hold the same bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_for
from torch import nn

from autofedavg.core.bank import Layout, Model
from autofedavg.federation.encoding import BLOCK, MOST, as_received, bytes_of, kinds, opened, packed
from toy import mlp, norm_net

LOSSY = ["bfloat16", "difference"]
ENCODINGS = ["float32", *LOSSY]
SIZES = st.integers(1, 3 * BLOCK)


@st.composite
def models(draw, dtype="float32"):
    """(model, reference) of one size: any finite numbers a network could hold."""
    size = draw(SIZES)
    width = 32 if dtype == "float32" else 64
    numbers = st.floats(-1e6, 1e6, width=width)
    values, reference = (
        torch.from_numpy(draw(arrays_for.arrays(dtype, size, elements=numbers))) for _ in range(2)
    )
    if draw(st.booleans()):  # usually the two are close
        values = reference + values * 1e-8
    counters = torch.tensor(draw(st.lists(st.integers(-(2**62), 2**62), max_size=3)))
    counters = counters.to(torch.int64)
    return Model(values, counters), Model(reference, counters)


def spread(scales, size):
    return scales.repeat_interleave(BLOCK)[:size]


@given(models())
def test_float32_is_the_model_itself(pair):
    model, reference = pair
    back = as_received(model, "float32", reference)
    assert back.values is model.values
    assert torch.equal(back.counters, model.counters)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(data=st.data())
def test_bfloat16_is_off_by_one_part_in_256_at_most(dtype, data):
    model, _ = data.draw(models(dtype))
    back = as_received(model, "bfloat16")
    assert back.values.dtype == model.values.dtype
    off = (back.values - model.values).abs()
    assert bool((off <= model.values.abs() / 256 + 1e-38).all())


@given(models())
def test_a_difference_is_off_by_one_step_at_most_and_by_half_where_no_sign_is_at_stake(pair):
    model, reference = pair
    arrays = packed(model, "difference", reference)
    back = opened(arrays, "difference", torch.float32, reference).values.double()
    step = spread(arrays["scales"], len(back)).double()
    largest = (model.values - reference.values).abs().max()
    assert bool((arrays["scales"] <= largest / MOST * (1 + 1e-6) + 1e-45).all())
    rounding = 3e-7 * (model.values.abs() + reference.values.abs()).double() + 1e-36
    off = (back - model.values.double()).abs()
    assert bool((off <= step + rounding).all())
    kept = model.values.sign() != reference.values.sign()
    assert bool((off <= step / 2 + rounding)[kept | (model.values.abs().double() > step)].all())


@given(models())
def test_a_difference_never_turns_a_sign(pair):
    """A variance stays positive."""
    model, reference = pair
    back = as_received(model, "difference", reference)
    same = model.values.sign() == reference.values.sign()
    assert torch.equal(back.values.sign()[same], model.values.sign()[same])


def test_a_small_number_next_to_a_large_one_keeps_its_sign():
    """The nearest step from 0.5 to 0.01, one of 100 / 127, leads below zero."""
    none = torch.empty(0, dtype=torch.int64)
    reference = Model(torch.tensor([0.5, 100.0, -0.5]), none)
    model = Model(torch.tensor([0.01, 0.0, -0.01]), none)
    back = as_received(model, "difference", reference).values
    assert back.sign().tolist() == [1.0, 0.0, -1.0]


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_there_is_a_scale_for_every_block_and_no_more(size):
    model = Model(torch.linspace(-1, 1, size), torch.empty(0, dtype=torch.int64))
    arrays = packed(model, "difference", Model(torch.zeros(size), model.counters))
    assert arrays["scales"].numel() == -(-size // BLOCK)
    assert kinds(model, "difference") == {k: (a.shape, a.dtype) for k, a in arrays.items()}


@pytest.mark.parametrize("how", ENCODINGS)
@given(pair=models())
def test_both_ends_hold_the_same_bits_and_the_counters_are_exact(how, pair):
    model, reference = pair
    arrays = packed(model, how, reference)
    here = opened(arrays, how, torch.float32, reference)
    travelled = {name: torch.tensor(array.numpy()) for name, array in arrays.items()}
    there = opened(travelled, how, torch.float32, reference.clone())
    assert here.digest() == there.digest() == as_received(model, how, reference).digest()
    assert torch.equal(there.counters, model.counters)


@pytest.mark.parametrize("how", ENCODINGS)
@given(pair=models())
def test_what_is_packed_has_the_kinds_that_are_expected(how, pair):
    model, reference = pair
    arrays = packed(model, how, reference)
    assert kinds(model, how) == {k: (a.shape, a.dtype) for k, a in arrays.items()}


@given(models())
def test_bfloat16_of_what_arrived_is_exact(pair):
    model, _ = pair
    once = as_received(model, "bfloat16")
    assert once.digest() == as_received(once, "bfloat16").digest()


@given(models())
def test_an_unchanged_model_is_exact_as_a_difference(pair):
    model, _ = pair
    assert torch.equal(as_received(model, "difference", model.clone()).values, model.values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("how", LOSSY)
def test_what_is_not_finite_stays_so(how, bad):
    """The server then refuses it, as it would refuse the model itself."""
    model = Model(torch.tensor([1.0, bad, 2.0]), torch.empty(0, dtype=torch.int64))
    reference = Model(torch.zeros(3), model.counters)
    assert not bool(torch.isfinite(as_received(model, how, reference).values.sum()))


@pytest.mark.parametrize("network", [mlp, norm_net])
@pytest.mark.parametrize("how", ENCODINGS)
def test_bytes_are_known_before(network, how):
    built = network()
    layout = Layout.of(built)
    model = layout.read(built)
    sent = sum(array.nbytes for array in packed(model, how, model).values())
    assert bytes_of(layout, how) == sent


def test_a_large_model_travels_in_a_half_and_in_about_a_quarter():
    layout = Layout.of(nn.Linear(300, 300))
    assert bytes_of(layout, "bfloat16") == layout.nbytes / 2
    assert bytes_of(layout, "difference") / layout.nbytes == pytest.approx(0.258, abs=0.001)


def test_a_difference_needs_its_reference():
    model = Model(torch.zeros(3), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="needs a reference"):
        packed(model, "difference")
    arrays = packed(model, "difference", model)
    with pytest.raises(ValueError, match="needs a reference"):
        opened(arrays, "difference", torch.float32)
