"""The bytes of an answer, and answers that are none: whatever another machine may send."""

import json

import numpy as np
import pytest
import torch

from autofedavg.federation.messages import Message
from autofedavg.federation.replies import BadReply, size_of


@pytest.mark.parametrize(
    "facts",
    [{}, {"loss": 0.1234567890123}, {"loss": -1e-300, "n": 12}, {"missing": ["a"], "so": True}],
    ids=str,
)
def test_bytes_are_those_of_the_tensors_and_of_json(facts) -> None:
    arrays = {"theta": torch.zeros(3, dtype=torch.float64), "w": torch.zeros(2, 5)}
    assert size_of(Message(arrays, facts)) == 3 * 8 + 10 * 4 + len(json.dumps(facts))


NOT_ANSWERS = {
    "numpy arrays, which have bytes as well": Message({"theta": np.zeros(3)}, {}),
    "a list for a tensor": Message({"theta": [1.0]}, {}),
    "a tensor with a number for a name": Message({1: torch.zeros(3)}, {}),
    "a fact with a number for a name": Message({}, {1: 0.5}),
    "a tensor for a fact": Message({}, {"loss": torch.zeros(1)}),
    "an object for a fact": Message({}, {"loss": object()}),
    "no tensors": Message(None, {}),
    "no facts": Message({}, None),
    "a list of facts": Message({}, [0.5]),
}


@pytest.mark.parametrize("answer", NOT_ANSWERS.values(), ids=NOT_ANSWERS)
def test_what_is_no_answer_is_refused(answer) -> None:
    with pytest.raises(BadReply, match="not made of tensors and plain values"):
        size_of(answer)
