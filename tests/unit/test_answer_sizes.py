"""The bytes of an answer, and answers that are none: whatever another machine may send."""

import json

import numpy as np
import pytest
import torch

from autofedavg.federation.messages import Note
from autofedavg.federation.replies import BadAnswer, size_of


@pytest.mark.parametrize(
    "facts",
    [{}, {"loss": 0.1234567890123}, {"loss": -1e-300, "n": 12}, {"missing": ["a"], "so": True}],
    ids=str,
)
def test_bytes_are_those_of_the_tensors_and_of_json(facts) -> None:
    arrays = {"theta": torch.zeros(3, dtype=torch.float64), "w": torch.zeros(2, 5)}
    assert size_of(Note(arrays, facts)) == 3 * 8 + 10 * 4 + len(json.dumps(facts))


NOT_ANSWERS = {
    "numpy arrays, which have bytes as well": Note({"theta": np.zeros(3)}, {}),
    "a list for a tensor": Note({"theta": [1.0]}, {}),
    "a tensor with a number for a name": Note({1: torch.zeros(3)}, {}),
    "a fact with a number for a name": Note({}, {1: 0.5}),
    "a tensor for a fact": Note({}, {"loss": torch.zeros(1)}),
    "an object for a fact": Note({}, {"loss": object()}),
    "no tensors": Note(None, {}),
    "no facts": Note({}, None),
    "a list of facts": Note({}, [0.5]),
}


@pytest.mark.parametrize("answer", NOT_ANSWERS.values(), ids=NOT_ANSWERS)
def test_what_is_no_answer_is_refused(answer) -> None:
    with pytest.raises(BadAnswer, match="not made of tensors and plain values"):
        size_of(answer)
