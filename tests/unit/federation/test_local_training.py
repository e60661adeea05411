"""What a site refuses of a request to train, and what the server refuses of its reply."""

import math

import pytest
import torch
from torch import nn

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import TrainingError
from autofedavg.core.local_rules import PLAIN, Shift
from autofedavg.federation.local_training import LocalRequest, tell_of, vectors_of
from autofedavg.federation.messages import Message
from autofedavg.federation.replies import BadReply, trained_reply

LAYOUT = Layout.of(nn.Linear(2, 1, bias=False))
START = Model(torch.zeros(2), torch.empty(0, dtype=torch.int64))


def sent(**vectors) -> Message:
    return Message({f"along/{name}": vector for name, vector in vectors.items()}, {})


def test_a_rule_gets_its_vectors() -> None:
    shift = torch.ones(2)
    assert vectors_of(sent(shift=shift), Shift(), LAYOUT, "here") == {"shift": shift}
    assert vectors_of(Message(), PLAIN, LAYOUT, "here") == {}


@pytest.mark.parametrize(
    ("rule", "message"),
    [(Shift(), sent()), (PLAIN, sent(shift=torch.ones(2))), (Shift(), sent(push=torch.ones(2)))],
    ids=["missing", "not asked for", "unknown"],
)
def test_other_vectors_are_refused(rule, message) -> None:
    with pytest.raises(TrainingError, match="needs the vectors"):
        vectors_of(message, rule, LAYOUT, "here")


@pytest.mark.parametrize(
    "vector",
    [torch.ones(3), torch.ones(2).double(), torch.tensor([1.0, math.nan])],
    ids=["length", "type", "not finite"],
)
def test_a_vector_that_does_not_fit_is_refused(vector) -> None:
    with pytest.raises(TrainingError, match="'shift' is not 2 finite numbers"):
        vectors_of(sent(shift=vector), Shift(), LAYOUT, "here")


def test_an_unknown_number_is_not_told() -> None:
    assert tell_of({"tell": ["steps"]}, "here") == ("steps",)
    with pytest.raises(TrainingError, match="cannot tell 'secrets'; steps, reach"):
        tell_of({"tell": ["secrets"]}, "here")


def reply(arrays=(), **facts) -> Message:
    return Message({"values": torch.ones(2), **dict(arrays)}, {"loss": 1.0, **facts})


def test_what_was_asked_for_is_read() -> None:
    back = {"back/mean_gradient": torch.ones(2)}
    asked = LocalRequest(Shift(mean_gradient=True), ("reach",), length=2)
    found = trained_reply(reply(back, reach=2.5), START, "float32", asked)
    assert found.told == {"reach": 2.5}
    assert found.back["mean_gradient"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("reach", [0.0, -1.0])
def test_a_path_has_a_length(reach) -> None:
    with pytest.raises(BadReply, match="its reach is"):
        trained_reply(reply(reach=reach), START, "float32", LocalRequest(tell=("reach",)))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "was asked for"),
        ({"back/other": torch.ones(2)}, "was asked for"),
        ({"back/mean_gradient": torch.ones(3)}, "is not 2 finite numbers"),
        ({"back/mean_gradient": torch.tensor([1.0, math.inf])}, "is not 2 finite numbers"),
    ],
    ids=["missing", "another", "length", "not finite"],
)
def test_vectors_that_come_back_are_checked(arrays, says) -> None:
    asked = LocalRequest(Shift(mean_gradient=True), length=2)
    with pytest.raises(BadReply, match=says):
        trained_reply(reply(arrays), START, "float32", asked)
