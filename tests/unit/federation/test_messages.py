"""What crosses the wire."""

import json

import pytest
import torch

from autofedavg.core.bank import Model
from autofedavg.core.errors import FederationError
from autofedavg.federation.messages import Message, Score, Scores, arrays_of, model_of, total_bytes
from toy import float64


def test_a_note_weighs_its_tensors_and_its_plain_values():
    facts = {"t": 3, "sites": ["A", "B"]}
    message = Message({"values": torch.zeros(10), "beta": float64([1.0])}, facts)
    assert message.nbytes == 40 + 8 + len(json.dumps(facts))
    assert Message().nbytes == len("{}")


def test_a_note_sent_to_many_weighs_as_often_as_it_is_sent():
    message, other = Message({"values": torch.zeros(10)}), Message({"values": torch.zeros(2)})
    assert total_bytes([message, message, other]) == 2 * message.nbytes + other.nbytes


@pytest.mark.parametrize("counters", [[], [4, 5]])
def test_a_model_as_arrays_and_back(counters):
    model = Model(float64([1.0, 2.0]), torch.tensor(counters, dtype=torch.int64))
    arrays = arrays_of(model)
    assert ("counters" in arrays) == bool(counters)
    back = model_of(arrays)
    assert torch.equal(back.values, model.values)
    assert torch.equal(back.counters, model.counters)


def test_one_site_s_model_out_of_a_bag():
    bag = {"values/A": float64([1.0]), "values/B": float64([2.0]), "counters/B": torch.tensor([7])}
    assert model_of(bag, "A").counters.numel() == 0
    assert model_of(bag, "B").values.item() == 2.0
    assert model_of(bag, "B").counters.tolist() == [7]


ROWS = (
    Score("A", "1", "dice", 0.2),
    Score("A", "2", "dice", 0.4),
    Score("A", "2", "other", 9.0),
    Score("B", "1", "dice", 0.9),
)


def test_scores_are_averaged_over_cases_then_over_sites():
    scores = Scores(ROWS)
    assert scores.by_site("dice") == pytest.approx({"A": 0.3, "B": 0.9})
    assert scores.mean("dice") == pytest.approx(0.6)
    assert scores.by_site("other") == {"A": 9.0}


def test_a_mean_over_nothing_is_said_to_be_none():
    with pytest.raises(FederationError, match="no case of any site has a score called f1"):
        Scores(ROWS).mean("f1")
    assert Scores(()).mean("f1", {"A": 0.5}) == 0.5, "an earlier score stands in"
