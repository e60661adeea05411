"""Clients that take their steps together: what can be told without a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autofedavg.averaging import Layout
from autofedavg.networks.vgg9 import vgg9
from autofedavg.stacked.layers import Convolution, Linear, fits, layers_of
from autofedavg.stacked.rows import ALIGNED, Rows
from autofedavg.stacked.schedule import schedule, slots_for

# --- which networks ---------------------------------------------------------------------------


def test_vgg9_is_read() -> None:
    layers = layers_of(vgg9(10), 3, 32)
    assert layers is not None
    convolutions = [layer for layer in layers if isinstance(layer, Convolution)]
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    assert [(c.inputs, c.outputs, c.size, c.pooled) for c in convolutions] == [
        (3, 32, 32, False), (32, 64, 32, True), (64, 128, 16, False), (128, 128, 16, True),
        (128, 256, 8, False), (256, 256, 8, True),
    ]  # fmt: skip
    assert [(c.drop, c.keep) for c in convolutions if c.drop] == [
        ("channels", 0.95), ("elements", 0.9),
    ]  # fmt: skip
    assert [(f.inputs, f.outputs, f.relu, f.keep, f.picture) for f in linear] == [
        (4096, 512, True, 1.0, (256, 4)), (512, 512, True, 0.9, None), (512, 10, False, 1.0, None),
    ]  # fmt: skip
    assert fits(layers, 64)
    assert not fits(layers, 32)  # 32 pictures of 8 x 8 are too few positions
    assert not fits(layers, 192)


def small(*inside: nn.Module) -> nn.Sequential:
    return nn.Sequential(*inside, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 64, 10))


def test_a_small_one_is_read() -> None:
    assert layers_of(small(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()), 3, 16) == [
        Convolution("0", 3, 16, 16, pooled=True),
        Linear("4", 1024, 10, picture=(16, 8)),
    ]


CONVOLUTION = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
OTHERS = {
    "no chain": nn.Linear(3, 2),
    "empty": nn.Sequential(),
    "no ReLU": small(nn.Conv2d(3, 16, 3, padding=1)),
    "a stride": small(nn.Conv2d(3, 16, 3, padding=1, stride=2), nn.ReLU()),
    "5 x 5": small(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU()),
    "no bias": small(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.ReLU()),
    "mirrored borders": small(nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect"), nn.ReLU()),
    "groups": small(*CONVOLUTION, nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.ReLU()),
    "24 channels": small(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU()),
    "8 channels": small(*CONVOLUTION, nn.Conv2d(16, 8, 3, padding=1), nn.ReLU()),
    "batch norm": small(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    "dropout in between": small(*CONVOLUTION, nn.Dropout(0.1)),
    "nothing pooled": nn.Sequential(*CONVOLUTION, nn.Flatten(), nn.Linear(4096, 10)),
    "maxima of 3": nn.Sequential(*CONVOLUTION, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(400, 10)),
    "no linear layer": nn.Sequential(*CONVOLUTION, nn.MaxPool2d(2), nn.Flatten()),
    "two linear ones without ReLU": nn.Sequential(
        *CONVOLUTION, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 16), nn.Linear(16, 10)
    ),
    "ReLU at the end": nn.Sequential(*small(*CONVOLUTION), nn.ReLU()),
    "softmax at the end": nn.Sequential(*small(*CONVOLUTION), nn.Softmax(1)),
    "linear without bias": nn.Sequential(
        *CONVOLUTION, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10, bias=False)
    ),
    "48 inputs": nn.Sequential(
        *CONVOLUTION,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_left_alone(name) -> None:
    assert layers_of(OTHERS[name], 3, 16) is None


def test_other_pictures_are_left_alone() -> None:
    assert layers_of(small(*CONVOLUTION), 1, 16) is None
    assert layers_of(small(*CONVOLUTION), 3, 12) is None


# --- when -------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 8))
def test_everybody_takes_all_steps_and_no_table_is_shorter(lengths, slots) -> None:
    table = schedule(tuple(enumerate(lengths)), slots)
    assert table.shape[1] == slots
    for k, length in enumerate(lengths):
        assert (table == k).sum() == length
        assert (table == k).sum(axis=1).max() == 1  # never twice in a step
    assert len(table) == max(max(lengths), -(-sum(lengths) // slots))


@given(LENGTHS)
def test_slots_are_full_until_the_longest_is_done(lengths) -> None:
    slots = slots_for(lengths, 16)
    assert 1 <= slots <= len(lengths)
    table = schedule(tuple(enumerate(lengths)), slots)
    assert (table < 0).sum() < max(slots, 2)  # but for the last step
    assert slots_for(lengths, 3) <= 3


# --- where ------------------------------------------------------------------------------------


def rows_of(network: nn.Module) -> Rows:
    layers = layers_of(network, 3, 32)
    assert layers is not None
    return Rows(layers, Layout.of(network))


def test_a_network_goes_into_a_row_and_out_of_it() -> None:
    network = vgg9(10)
    rows = rows_of(network)
    values = Layout.of(network).read(network).values
    row = torch.full((rows.stride,), -7.0)
    rows.put(values, row)
    assert torch.equal(rows.take(row), values)
    assert (row == -7).sum() == rows.stride - len(values)  # only gaps are left as they were
    assert all(piece.at % ALIGNED == 0 for piece in rows.pieces.values())


def test_channels_come_last_in_a_row() -> None:
    network = vgg9(10)
    rows = rows_of(network)
    row = torch.zeros(rows.stride)
    rows.put(Layout.of(network).read(network).values, row)
    state = network.state_dict()

    def piece(name: str) -> torch.Tensor:
        place = rows.pieces[name]
        return row[place.at : place.at + place.stop - place.start]

    second = piece("2.weight").view(64, 3, 3, 32)
    assert torch.equal(second, state["2.weight"].permute(0, 2, 3, 1))
    picture = torch.randn(256, 4, 4)
    seen = piece("18.weight").view(512, -1) @ picture.permute(1, 2, 0).reshape(-1)
    assert torch.allclose(seen, state["18.weight"] @ picture.reshape(-1), atol=1e-5)
    assert np.array_equal(piece("20.weight").view(512, 512), state["20.weight"])


@pytest.mark.parametrize("kind", ["module", "tensor"])
def test_a_row_is_cut_within_its_layers(kind) -> None:
    network = vgg9(10)
    rows, layout = rows_of(network), Layout.of(network)
    layers = layout.layers(kind)
    numbers = torch.zeros(layout.size)
    for start, stop, p in layers.segments:
        numbers[start:stop] = p + 1
    row = torch.zeros(rows.stride)
    rows.put(numbers, row)
    for start, size, p in rows.chunks(layers, 1024):
        assert 0 < size <= 1024
        assert start % ALIGNED == size % ALIGNED == 0
        assert set(row[start : start + size].unique().tolist()) <= {0, p + 1}  # and a gap
        row[start : start + size] = 0
    assert not row.any()


def test_without_layers_a_row_is_cut_from_end_to_end() -> None:
    rows = rows_of(vgg9(10))
    chunks = rows.chunks(None, 4096)
    ends = [start + size for start, size, _ in chunks]
    assert [0, *ends] == [*[start for start, _, _ in chunks], rows.stride]
    assert max(size for _, size, _ in chunks) == 4096
    assert {p for _, _, p in chunks} == {0}


@pytest.mark.parametrize("kind", [None, "module"])
def test_no_piece_is_of_convolutions_and_linear_layers(kind) -> None:
    network = vgg9(10)
    rows = rows_of(network)
    assert rows.linear == rows.pieces["18.weight"].at
    chunks = rows.chunks(Layout.of(network).layers(kind) if kind else None, 4096)
    assert any(start == rows.linear for start, _, _ in chunks)
    assert not any(start < rows.linear < start + size for start, size, _ in chunks)
