"""Dice in pieces equals Dice at once; empty masks by the rule of decision 9."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.tasks.imaging import prediction
from autofedavg.tasks.imaging.prediction import dices


def test_dice_of_empty_masks() -> None:
    empty, full = torch.zeros(3, 1, dtype=torch.uint8), torch.ones(3, 1, dtype=torch.uint8)
    assert dices(empty, empty, 1) == [1.0]
    assert dices(full, empty, 1) == dices(empty, full, 1) == [0.0]
    assert dices(full, full, 2) == [1.0, 1.0]
    assert dices(torch.tensor([[1], [1], [0]]), torch.tensor([[1], [0], [0]]), 1) == [2 / 3]


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_the_largest_output_is_the_class_and_the_first_of_equal_ones(seed, classes) -> None:
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randint(3, (classes, 4, 3, 2), generator=draw).float()  # many are equal
    found = prediction._largest(outputs)
    assert found.dtype == torch.uint8
    expected = [max(range(classes), key=lambda k: column[k]) for column in outputs.flatten(1).T]
    assert found.flatten().tolist() == expected


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_pieces_change_nothing(seed, voxels) -> None:
    draw = torch.Generator().manual_seed(seed)
    found, label = (torch.randint(4, (9, 3, 2), generator=draw).to(torch.uint8) for _ in range(2))
    whole = [
        2 * int(((found == k) & (label == k)).sum()) / int((found == k).sum() + (label == k).sum())
        if ((found == k) | (label == k)).any()
        else 1.0
        for k in (1, 2, 3)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "AT_ONCE", voxels)
        assert dices(found, label, 3) == whole
