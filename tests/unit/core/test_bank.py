"""The model bank: what is in the vector, how K of them are averaged, and what is not copied."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from autofedavg.core.bank import Bank, Layers, Layout, Model, joint_digest
from autofedavg.core.errors import AutoFedAvgError, ConfigError
from toy import bank_of, float64, mlp, norm_net, seeded

NO_COUNTERS = torch.empty(0, dtype=torch.int64)
NUMBERS = st.floats(-1e3, 1e3, allow_subnormal=False)
LAYERS = Layers(("a", "b", "c"), ((0, 2, 0), (2, 3, 1), (3, 5, 2), (5, 6, 0)))


def banks():
    """Banks of K models of six numbers and one counter each."""

    def build(values):
        K = len(values)
        counters = torch.arange(K).unsqueeze(1)
        return Bank(tuple("ABCDEFGH"[:K]), torch.from_numpy(values), counters)

    shapes = st.integers(1, 6).map(lambda K: (K, 6))
    return shapes.flatmap(lambda shape: hnp.arrays("float64", shape, elements=NUMBERS)).map(build)


def weights(data, K):
    drawn = data.draw(st.lists(st.floats(0.01, 1.0), min_size=K, max_size=K))
    return float64(drawn) / sum(drawn)


def model(values, counters=()):
    return Model(float64(values), torch.tensor(counters, dtype=torch.int64))


# --- the two products -----------------------------------------------------------------------------


@given(data=st.data())
def test_averaging_equal_models_changes_nothing(data):
    one = data.draw(hnp.arrays("float64", 6, elements=NUMBERS))
    K = data.draw(st.integers(1, 6))
    bank = Bank.gather({"ABCDEFGH"[k]: model(one.tolist(), [3]) for k in range(K)})
    combined = bank.combine(weights(data, K))
    torch.testing.assert_close(combined.values, torch.from_numpy(one), rtol=1e-13, atol=1e-13)
    assert combined.counters.tolist() == [3]


@given(bank=banks(), data=st.data())
def test_one_hot_alpha_returns_that_client_exactly(bank, data):
    k = data.draw(st.integers(0, len(bank.sites) - 1))
    alpha = torch.zeros(len(bank.sites), dtype=torch.float64)
    alpha[k] = 1
    assert torch.equal(bank.combine(alpha).values, bank.values[k])
    by_layer = alpha.unsqueeze(1).repeat(1, LAYERS.P)
    assert torch.equal(bank.combine(by_layer, LAYERS).values, bank.values[k])


@given(bank=banks(), data=st.data())
def test_layer_wise_with_equal_columns_equals_network_wise(bank, data):
    alpha = weights(data, len(bank.sites))
    by_layer = bank.combine(alpha.unsqueeze(1).repeat(1, LAYERS.P), LAYERS)
    torch.testing.assert_close(by_layer.values, bank.combine(alpha).values, rtol=0, atol=1e-11)


@given(bank=banks(), data=st.data())
def test_permuting_clients_and_weights_together_changes_nothing(bank, data):
    alpha = weights(data, len(bank.sites))
    order = data.draw(st.permutations(range(len(bank.sites))))
    moved = Bank.gather({bank.sites[k]: bank[bank.sites[k]] for k in order})
    found = moved.combine(alpha[torch.tensor(order)]).values
    torch.testing.assert_close(found, bank.combine(alpha).values, rtol=0, atol=1e-11)


@given(bank=banks(), data=st.data())
def test_projection_is_the_derivative_of_combination(bank, data):
    """<project(g), alpha> = <g, combine(alpha)>: the two products are each other's transpose."""
    g = torch.from_numpy(data.draw(hnp.arrays("float64", 6, elements=st.floats(-10, 10))))
    alpha = weights(data, len(bank.sites))
    network_wise = (bank.project(g) * alpha).sum()
    torch.testing.assert_close(network_wise, g @ bank.combine(alpha).values, rtol=0, atol=1e-8)
    by_layer = alpha.unsqueeze(1) * torch.tensor([1.0, 0.5, 0.25])
    layer_wise = (bank.project(g, LAYERS) * by_layer).sum()
    mixed = bank.combine(by_layer, LAYERS).values
    torch.testing.assert_close(layer_wise, g @ mixed, rtol=0, atol=1e-8)


@given(bank=banks(), end=st.integers(1, 6))
def test_layer_wise_projections_sum_to_the_network_wise_one(bank, end):
    """Also where the trainable part ends inside a layer."""
    g = torch.linspace(-1, 1, end, dtype=torch.float64)
    whole = bank.project(g)
    torch.testing.assert_close(bank.project(g, LAYERS).sum(dim=1), whole, rtol=0, atol=1e-9)


def test_a_projection_is_float64_on_the_cpu_whatever_the_models_are():
    bank, layout = bank_of(mlp, 2)
    g = torch.ones(layout.trainable)
    assert bank.project(g).dtype == torch.float64
    assert bank.project(g, layout.layers("module")).dtype == torch.float64


def test_a_projection_does_not_depend_on_where_the_gradient_lies():
    """Engines hand over gradients at any address; sums of float32 would differ in the last bits."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 1001, generator=generator)
    bank = Bank(("A", "B", "C"), values, torch.zeros(3, 0, dtype=torch.int64))
    gradient = torch.randn(1001, generator=generator)
    layers = Layers(("a", "b"), ((0, 300, 0), (300, 1001, 1)))
    for shift in range(1, 16):
        moved = torch.empty(1001 + shift)[shift:].copy_(gradient)
        assert torch.equal(bank.project(moved), bank.project(gradient)), shift
        assert torch.equal(bank.project(moved, layers), bank.project(gradient, layers)), shift


def test_alpha_is_cast_to_the_type_of_the_models():
    bank, _ = bank_of(mlp, 2)
    assert bank.combine(float64([0.5, 0.5])).values.dtype == torch.float32


def test_combining_leaves_the_models_alone():
    bank, layout = bank_of(norm_net, 3)
    before = bank.values.clone()
    combined = bank.combine(float64([0.2, 0.3, 0.5]))
    combined.values.zero_()
    bank.combine(torch.full((3, 3), 1 / 3), layout.layers("module")).values.zero_()
    assert torch.equal(bank.values, before)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (1, 3)])
def test_an_alpha_of_the_wrong_shape_is_refused(shape):
    bank, layout = bank_of(mlp, 3)
    with pytest.raises(AutoFedAvgError, match=r"^Bank.combine: alpha has shape .* expected \(3,\)"):
        bank.combine(torch.ones(shape))
    with pytest.raises(AutoFedAvgError, match=r"expected \(3, 2\)$"):
        bank.combine(torch.ones(shape), layout.layers("module"))


def test_cosines_are_those_of_the_models_and_one_where_there_is_none():
    bank = Bank.gather(
        {"A": model([1, 1, 0, 2]), "B": model([-2, 0, 0, 0]), "C": model([0, 0, 3, 0])}
    )
    w = model([1, 0, 0, 0])
    layers = Layers(("a", "b"), ((0, 2, 0), (2, 4, 1)))
    root = 0.5**0.5
    assert bank.gram(w, 2).cosines.tolist() == pytest.approx([root, -1, 1])
    expected = [[root, -1, 1], [1, 1, 1]]
    for found, wanted in zip(bank.gram(w, 4, layers).cosines.tolist(), expected, strict=True):
        assert found == pytest.approx(wanted)


# --- the buffer rule ------------------------------------------------------------------------------


def test_floating_buffers_are_averaged_and_counters_take_the_maximum():
    bank, layout = bank_of(norm_net, 3)
    alpha = float64([0.2, 0.3, 0.5])
    mixed = layout.state_dict(bank.combine(alpha))
    states = [layout.state_dict(bank[site]) for site in bank.sites]
    for name in ("1.running_mean", "1.running_var"):
        by_hand = sum(float(a) * state[name] for a, state in zip(alpha, states, strict=True))
        torch.testing.assert_close(mixed[name], by_hand)
    assert [state["1.num_batches_tracked"].item() for state in states] == [1, 2, 3]
    assert mixed["1.num_batches_tracked"].item() == 3
    assert mixed["1.num_batches_tracked"].dtype == torch.int64


def test_layer_wise_buffers_follow_the_module_that_owns_them():
    bank, layout = bank_of(norm_net, 2)
    layers = layout.layers("module")
    alpha = torch.zeros(2, layers.P, dtype=torch.float64)
    alpha[0] = 1
    alpha[:, layers.names.index("1")] = float64([0, 1])
    mixed = layout.state_dict(bank.combine(alpha, layers))
    first, second = (layout.state_dict(bank[site]) for site in "AB")
    assert torch.equal(mixed["1.running_var"], second["1.running_var"])
    assert torch.equal(mixed["1.weight"], second["1.weight"])
    assert torch.equal(mixed["4.weight"], first["4.weight"])


def test_buffers_that_are_not_saved_are_left_out():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.inner.register_buffer("mask", torch.ones(2), persistent=False)
            self.register_buffer("grid", torch.arange(3), persistent=False)
            self.register_buffer("scale", torch.ones(1))

    network = Masked()
    layout = Layout.of(network)
    assert layout.names == ("inner.weight", "inner.bias", "scale")
    assert layout.counters == ()
    network.load_state_dict(layout.state_dict(layout.read(network)), strict=True)


# --- what a vector is made of ---------------------------------------------------------------------


def test_the_trainable_part_comes_first():
    network = norm_net()
    network[0].weight.requires_grad_(False)
    layout = Layout.of(network)
    trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert layout.trainable == trainable
    assert layout.names[:2] == ("0.bias", "1.weight")
    assert layout.names[-3:] == ("0.weight", "1.running_mean", "1.running_var")
    assert layout.size == trainable + 24 + 12
    assert layout.nbytes == 4 * layout.size + 8


def test_a_layer_may_lie_on_both_sides_of_the_trainable_part():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    layers = Layout.of(network).layers("module")
    assert layers.names == ("0", "1")
    assert layers.segments == ((0, 9, 0), (9, 21, 1))
    bank, layout = bank_of(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), 2)
    g = torch.arange(layout.trainable, dtype=torch.float32)
    found = bank.project(g, layers)
    by_hand = (bank.values[:, 9:15] * g[9:15]).sum(dim=1).double()
    torch.testing.assert_close(found[:, 1], by_hand, rtol=1e-5, atol=1e-5)


def test_layers_by_tensor_are_the_tensors():
    layout = Layout.of(mlp())
    layers = layout.layers("tensor")
    assert layers.names == layout.names
    assert [p for _, _, p in layers.segments] == list(range(layers.P))


def test_parameters_of_the_network_itself_form_a_layer_without_a_name():
    assert Layout.of(nn.Linear(2, 2)).layers("module").names == ("",)


def test_a_network_without_anything_to_train_is_refused():
    with pytest.raises(
        ConfigError, match=r"^ReLU: the network has no trainable parameter; set req"
    ):
        Layout.of(nn.ReLU())


def test_mixed_floating_types_are_refused():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    wrong = r"^Sequential: the network mixes torch.float32, torch.float64; cast it to one"
    with pytest.raises(ConfigError, match=wrong):
        Layout.of(network)


def test_a_buffer_of_another_floating_type_is_refused():
    network = nn.Linear(2, 2)
    network.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    with pytest.raises(ConfigError, match=r"mixes torch.float32, torch.float64"):
        Layout.of(network)


@pytest.mark.parametrize("build", [mlp, norm_net])
def test_state_dict_and_back(build):
    network, other = seeded(build, 1), seeded(build, 2)
    layout = Layout.of(network)
    state = layout.state_dict(layout.read(network))
    other.load_state_dict(state, strict=True)
    for name, tensor in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    back = layout.model(state)
    assert torch.equal(back.values, layout.read(network).values)
    assert torch.equal(back.counters, layout.read(network).counters)


class Tied(nn.Module):
    """The decoder's weight is the encoder's."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


def test_a_tied_parameter_is_in_the_vector_once():
    layout = Layout.of(Tied())
    assert layout.names == ("encoder.weight", "encoder.bias")
    assert layout.size == 12


def test_a_tied_network_s_state_loads_strictly():
    network, other = seeded(Tied, 1), seeded(Tied, 2)
    layout = Layout.of(network)
    other.load_state_dict(layout.state_dict(layout.read(network)), strict=True)
    assert torch.equal(other.decoder.weight, network.encoder.weight)
    assert torch.equal(layout.model(network.state_dict()).values, layout.read(network).values)


class Siamese(nn.Module):
    """One module under two names, with buffers and a counter."""

    def __init__(self):
        super().__init__()
        self.left = self.right = nn.BatchNorm1d(3)


def test_a_module_under_two_names_loads_strictly():
    network, other = seeded(Siamese, 1), Siamese()
    network.left.running_mean.fill_(2.0)
    network.left.num_batches_tracked.fill_(5)
    layout = Layout.of(network)
    assert layout.size == 12
    other.load_state_dict(layout.state_dict(layout.read(network)), strict=True)
    assert other.right.running_mean.tolist() == [2.0, 2.0, 2.0]
    assert other.right.num_batches_tracked.item() == 5


def test_reading_copies():
    network = mlp()
    layout = Layout.of(network)
    read = layout.read(network)
    before = read.values.clone()
    with torch.no_grad():
        network[0].weight.zero_()
    assert torch.equal(read.values, before)


def test_a_network_of_one_tensor_is_copied_too():
    network = nn.Linear(3, 1, bias=False)
    read = Layout.of(network).read(network)
    read.values.zero_()
    assert bool((network.weight != 0).any())


def test_a_copy_of_a_model_is_a_copy():
    one = model([1.0, 2.0], [3])
    copy = one.clone()
    copy.values.zero_()
    copy.counters.zero_()
    assert one.values.tolist() == [1.0, 2.0]
    assert one.counters.tolist() == [3]


def test_networks_are_told_apart_by_names_and_shapes():
    described = {Layout.of(n).describe() for n in (mlp(), norm_net(), nn.Linear(2, 3))}
    assert len(described) == 3
    assert Layout.of(seeded(mlp, 1)).describe() == Layout.of(seeded(mlp, 2)).describe()


def test_normalisation_layers_are_found_by_the_type_of_the_module():
    """Whatever their names are: affine parameters and statistics, but no other entry."""
    network = nn.Sequential()
    network.plain = nn.Conv1d(2, 3, 1)
    network.first = nn.BatchNorm1d(3)
    network.bn = nn.Linear(3, 4)  # only called so
    network.second = nn.GroupNorm(2, 4)
    network.third = nn.LayerNorm(4)
    network.fourth = nn.RMSNorm(4)
    network.fifth = nn.InstanceNorm3d(4, affine=True, track_running_stats=True)
    network.without = nn.InstanceNorm2d(4)
    layout = Layout.of(network)
    inside = [
        any(start <= entry.start and entry.stop <= stop for start, stop in layout.normalisation)
        for entry in layout.entries
    ]
    owners = {"first", "second", "third", "fourth", "fifth"}
    assert inside == [entry.module in owners for entry in layout.entries]
    assert layout.normalisation == ((9, 15), (31, 73))  # neighbours are one segment


def test_normalisation_of_networks_without_such_layers_or_with_unusual_ones():
    assert Layout.of(mlp()).normalisation == ()
    assert Layout.of(nn.Linear(2, 2)).normalisation == ()
    assert Layout.of(nn.BatchNorm1d(3)).normalisation == ((0, 12),)
    scaled = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    torch.nn.utils.parametrizations.weight_norm(scaled[0])
    torch.nn.utils.parametrize.register_parametrization(scaled[1], "weight", nn.Identity())
    named = {entry.name: entry for entry in Layout.of(scaled).entries}
    segments = Layout.of(scaled).normalisation
    normal = [n for n, e in named.items() if any(a <= e.start < b for a, b in segments)]
    assert normal == ["1.bias", "1.parametrizations.weight.original"]
    frozen = norm_net()
    frozen[1].requires_grad_(False)
    assert Layout.of(frozen).normalisation == ((51, 51 + 4 * 6),)


def test_normalisation_does_not_tell_networks_apart():
    one, other = nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(1, 3)
    other.weight = nn.Parameter(torch.ones(3))
    assert Layout.of(one).normalisation
    assert not Layout.of(other).normalisation
    assert Layout.of(one).describe() == Layout.of(other).describe()
    assert Layout.of(one) == Layout.of(other)


# --- gathering ------------------------------------------------------------------------------------


def rows(values, counters, picked):
    return {"ABCDEFGH"[k]: Model(values[k], counters[k]) for k in picked}


@pytest.mark.parametrize("picked", [[0, 1, 2, 3], [1, 2], [0], [3]])
def test_adjacent_rows_are_not_copied(picked):
    values, counters = torch.randn(4, 5), torch.arange(8).reshape(4, 2)
    bank = Bank.gather(rows(values, counters, picked))
    assert bank.values.data_ptr() == values[picked[0]].data_ptr()
    assert bank.counters.data_ptr() == counters[picked[0]].data_ptr()
    assert torch.equal(bank.values, values[picked])
    values[picked[-1]].fill_(9)
    assert bool((bank.values[-1] == 9).all())


@pytest.mark.parametrize("picked", [[1, 0], [0, 2], [0, 1, 3], [3, 2, 1, 0]])
def test_rows_that_are_not_adjacent_are_copied_in_the_order_given(picked):
    values, counters = torch.randn(4, 5), torch.arange(8).reshape(4, 2)
    bank = Bank.gather(rows(values, counters, picked))
    assert torch.equal(bank.values, values[picked])
    assert torch.equal(bank.counters, counters[picked])
    bank.values.zero_()
    assert bool((values != 0).all())


def test_rows_of_two_matrices_are_copied():
    one, other = torch.randn(2, 5), torch.randn(2, 5)
    bank = Bank.gather({"A": Model(one[0], NO_COUNTERS), "B": Model(other[1], NO_COUNTERS)})
    assert torch.equal(bank.values, torch.stack([one[0], other[1]]))
    assert bank.counters.shape == (2, 0)


def test_strided_vectors_are_not_taken_for_rows():
    """They begin where the rows of a (2, 5) matrix would, but skip every other number."""
    numbers = torch.arange(20.0)
    first, second = numbers[0:10:2], numbers[5:15:2]
    bank = Bank.gather({"A": Model(first, NO_COUNTERS), "B": Model(second, NO_COUNTERS)})
    assert torch.equal(bank.values, torch.stack([first, second]))


def test_a_model_is_found_by_its_site():
    bank = Bank.gather({"A": model([1.0], [1]), "B": model([2.0], [2])})
    assert bank["B"].values.tolist() == [2.0]
    assert bank["B"].counters.tolist() == [2]


# --- digests --------------------------------------------------------------------------------------


def digests(bank):
    return joint_digest({site: bank[site].digest() for site in bank.sites})


def test_equal_banks_have_equal_digests_wherever_they_lie():
    values = torch.randn(3, 5)
    view = Bank(("A", "B"), values[:2], torch.ones(2, 1, dtype=torch.int64))
    copy = Bank(("A", "B"), values[:2].clone(), torch.ones(2, 1, dtype=torch.int64))
    assert digests(view) == digests(copy)


@pytest.mark.parametrize("change", ["values", "counters", "sites"])
def test_a_digest_tells_any_difference(change):
    bank = Bank(("A", "B"), torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64))
    values, counters, sites = bank.values.clone(), bank.counters.clone(), bank.sites
    if change == "values":
        values[1, 2] = 1e-30
    elif change == "counters":
        counters[0, 0] = 1
    else:
        sites = ("A", "C")
    assert digests(Bank(sites, values, counters)) != digests(bank)
