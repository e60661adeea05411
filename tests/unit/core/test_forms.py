"""Chains of layers in other widths: what they are made of, and what is no chain."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError
from autofedavg.core.forms import Form, form_of, reshaped
from autofedavg.core.seeds import global_seed
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.methods.fedma.chain import weighted_layers
from autofedavg.tasks.cifar.vgg9 import vgg9
from toy import CPU, TRAINING, cnn, cross_entropy, mlp, norm_net, seeded


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 3), st.integers(0, 3))
def test_a_form_s_layout_is_that_of_the_network_built_in_it(widths, frozen):
    form = Form((*widths, 3), frozen)
    built = reshaped(cnn(), form)
    assert Layout.of(built) == Layout.of(cnn()).formed(form)
    assert built(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    trained = [layer.weight.requires_grad for _, layer in _weighted(built)]
    assert trained == [n >= frozen for n in range(4)]
    assert [layer.weight.shape[0] for _, layer in _weighted(built)] == [*widths, 3]


def _weighted(network):
    named = network.named_modules()
    return [(name, m) for name, m in named if isinstance(m, nn.Conv2d | nn.Linear)]


def test_vgg9_has_nine_layers_and_blocks_of_sixteen_behind_the_flatten():
    assert len(weighted_layers(vgg9())) == 9
    form = Form((33, 65, 129, 128, 256, 300, 520, 512, 10))
    shapes = {e.name: tuple(e.shape) for e in Layout.of(vgg9()).formed(form).entries}
    assert shapes["18.weight"] == (520, 300 * 16)
    assert shapes["2.weight"] == (65, 33, 3, 3)


def test_what_a_layer_says_of_itself_stays_true():
    built = reshaped(cnn(), Form((7, 6, 5, 3)))
    assert repr(built[1]).startswith("Conv2d(7, 6,")
    assert repr(built[6]).startswith("Linear(in_features=24, out_features=5")


def test_a_form_survives_json():
    form = Form((3, 4), 1)
    assert form_of(json.loads(json.dumps(form.note()))) == form
    assert form_of(None) is None


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.inner(x)


tied = nn.Linear(4, 4)
frozen = nn.Linear(4, 4).requires_grad_(False)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (norm_net(), "1 is a BatchNorm1d"),
        (Skip(), "it is a Skip"),
        (nn.Sequential(nn.Linear(4, 4), Skip()), "1 is a Skip"),
        (nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2)), "0 has no bias"),
        (nn.Sequential(nn.Conv2d(2, 4, 1, groups=2), nn.Conv2d(4, 2, 1)), "0 is a grouped conv"),
        (nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 2)), "1 is a PReLU"),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Linear(4, 2)), "1 does not take what 0 gives"),
        (nn.Sequential(nn.Linear(4, 8), nn.GLU(), nn.Linear(4, 2)), "1 is a GLU"),
        (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(2), nn.Linear(4, 2)), "1 does not flatten"),
        (nn.Sequential(nn.Linear(4, 2)), "it has fewer than two layers"),
        (nn.Sequential(tied, nn.ReLU(), tied), "it uses a layer twice"),
        (nn.Sequential(frozen, nn.Linear(4, 2)), "0 is frozen"),
    ],
)
def test_what_is_no_plain_chain_is_refused(network, why):
    with pytest.raises(ConfigError, match=f"no plain chain of layers: {why}.*; use a chain of"):
        weighted_layers(network)


# --- the workbench in another form ----------------------------------------------------------------


def trainer(network=mlp) -> LocalTrainer:
    return LocalTrainer(network(), cross_entropy, TRAINING, CPU)


def test_a_variant_is_kept_until_another_is_asked_for():
    main = trainer()
    form = Form((8, 3), 1)
    assert main.variant(None) is main
    assert main.variant(None, TRAINING.model_copy()) is main
    grown = main.variant(form)
    assert main.variant(Form((8, 3), 1)) is grown
    assert grown.layout == main.layout.formed(form)
    longer = TRAINING.changed(rate=0.5, passes=2, weight_decay=None)
    other = main.variant(form, longer)
    assert other is not grown
    assert other.training == longer
    assert main.variant(None, longer).layout == main.layout
    assert main.variant(form) is not grown


def test_changed_training():
    training = Training(epochs=2, learning_rate=0.5, weight_decay=0.1)
    assert training.changed(0.1, 3, 0.25) == Training(
        epochs=6, learning_rate=0.05, weight_decay=0.25
    )
    assert training.changed(1.0, 1, None) == training


def test_frozen_layers_do_not_move():
    grown = trainer().variant(Form((8, 3), 1))
    grown.load(grown.drawn())
    before = grown.model().values
    batch = (torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))
    grown.train([batch] * 3, 0.1)
    moved = grown.model().values != before
    trained = grown.layout.trainable
    assert moved[:trained].any()
    assert not moved[trained:].any()


def test_new_weights_are_those_of_a_network_built_anew():
    main = trainer(norm_net)
    main.train([(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))], 0.1)
    before = main.model()
    with global_seed(3):
        drawn = main.drawn()
    built = seeded(norm_net, 3)
    assert torch.equal(drawn.values, Layout.of(built).read(built).values)
    assert drawn.counters.tolist() == [0]
    assert torch.equal(main.model().values, before.values)


def test_a_module_that_cannot_draw_its_weights_is_named():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(ConfigError, match=r"1 cannot draw new weights.*initial = 'shared'"):
        trainer(lambda: nn.Sequential(nn.Linear(4, 3), Scale())).drawn()
