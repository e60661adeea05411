"""Clients that take their steps together: what can be told without a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from autofedavg.core.bank import Layout
from autofedavg.core.forms import Form, reshaped
from autofedavg.engines.simulator.stacked.layers import (
    Convolution,
    Layer,
    Linear,
    fits,
    layers_of,
    rounded,
    tile,
)
from autofedavg.engines.simulator.stacked.rows import ALIGNED, Rows
from autofedavg.engines.simulator.stacked.schedule import schedule, slots_for
from autofedavg.tasks.cifar.vgg9 import vgg9

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
    "inputs that the layer before does not give": small(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU()),
    "too many channels": nn.Sequential(
        nn.Conv2d(3, 513, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(513 * 64, 10),
    ),
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
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_left_alone(name) -> None:
    assert layers_of(OTHERS[name], 3, 16) is None


def test_other_pictures_are_left_alone() -> None:
    assert layers_of(small(*CONVOLUTION), 1, 16) is None
    assert layers_of(small(*CONVOLUTION), 3, 12) is None


def grown(frozen: int = 0) -> nn.Module:
    """VGG-9 in widths that FedMA's matching gives."""
    return reshaped(vgg9(10), Form((47, 79, 143, 150, 271, 300, 527, 640, 10), frozen))


def test_other_widths_are_worked_on_as_wider_ones() -> None:
    layers = layers_of(grown(), 3, 32)
    assert layers is not None
    assert [(layer.inputs, layer.outputs) for layer in layers] == [
        (3, 64), (64, 128), (128, 192), (192, 192), (192, 320), (320, 320),
        (320 * 16, 576), (576, 640), (640, 10),
    ]  # fmt: skip
    assert [layer.picture for layer in layers[6:]] == [(320, 4), None, None]
    assert fits(layers, 64)


@given(st.integers(1, 2000))
def test_tiles_divide_what_widths_are_rounded_to(width) -> None:
    wide = rounded(width)
    assert width <= wide < width + 64
    assert wide in (16, 32) or wide % 64 == 0
    assert rounded(wide) == wide
    for most in (32, 64, 128, 256):
        assert wide % tile(wide, most) == 0
        assert min(wide, 64, most) <= tile(wide, most) <= most


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


def wide(layers: list[Layer], rows: Rows, row: torch.Tensor) -> nn.Sequential:
    """The network that kernels see in a row."""

    def part(layer: Layer, kind: str) -> torch.Tensor:
        piece = rows.pieces[f"{layer.name}.{kind}"]
        return row[piece.at : piece.at + piece.size].view(piece.room)

    made: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, Convolution):
            built = nn.Conv2d(layer.inputs, layer.outputs, 3, padding=1)
            built.weight.data = part(layer, "weight").permute(0, 3, 1, 2)
            after = [nn.ReLU(), nn.MaxPool2d(2)] if layer.pooled else [nn.ReLU()]
        else:
            weight = part(layer, "weight")
            if layer.picture:
                made.append(nn.Flatten())
                weight = weight.permute(0, 3, 1, 2).reshape(layer.outputs, -1)
            built = nn.Linear(layer.inputs, layer.outputs)
            built.weight.data = weight
            after = [nn.ReLU()] if layer.relu else []
        built.bias.data = part(layer, "bias")
        made += [built, *after]
    return nn.Sequential(*made)


def test_a_wider_network_says_the_same_and_stays_as_wide() -> None:
    """Units beyond the network's own are zero, and no gradient reaches them."""
    network = grown(frozen=2).eval()
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.05)
    layers, layout = layers_of(network, 3, 32), Layout.of(network)
    rows = Rows(layers, layout)
    row = torch.zeros(rows.stride)
    values = layout.read(network).values
    rows.put(values, row)
    assert torch.equal(rows.take(row), values)  # frozen layers lie last in the vector
    seen = wide(layers, rows, row.clone())
    pictures = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(seen(pictures), network(pictures), rtol=1e-4, atol=1e-5)
    seen(pictures).square().sum().backward()
    (first,) = (module for module in seen if getattr(module, "in_channels", 0) == 3)
    (last,) = (module for module in seen if getattr(module, "out_features", 0) == 10)
    assert not first.weight.grad[47:].any()
    assert not first.bias.grad[47:].any()
    assert first.weight.grad[:47].any()
    assert not last.weight.grad[:, 640:].any()
    (second,) = (module for module in seen if getattr(module, "in_features", 0) == 576)
    assert not second.weight.grad[:, 527:].any()
    assert second.weight.grad[:, :527].any()


@pytest.mark.parametrize("build", [lambda: vgg9(10), grown])
@pytest.mark.parametrize("kind", ["module", "tensor"])
def test_a_row_is_cut_within_its_layers(kind, build) -> None:
    network = build()
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
