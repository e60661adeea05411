"""FedMA's partitions: the very one behind Table 1, and what must hold for every other."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autofedavg.core.errors import DataError
from autofedavg.tasks.cifar.partition import heterogeneous, homogeneous
from fedma_partition import FEDMA_8, FEDMA_16


def labels_in_any_order(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(10), 5000)).astype(np.uint8)


def table(labels, shares) -> list[list[int]]:
    return [np.bincount(labels[share], minlength=10).tolist() for share in shares]


@pytest.mark.parametrize("seed", [0, 5])
def test_sixteen_clients_have_the_class_counts_of_fedma(seed) -> None:
    labels = labels_in_any_order(seed)
    assert table(labels, heterogeneous(labels, 16, 0.5, 0)) == FEDMA_16


def test_eight_clients_have_the_sizes_of_the_sister_study() -> None:
    shares = heterogeneous(labels_in_any_order(1), 8, 0.5, 0)
    assert [len(share) for share in shares] == FEDMA_8


def test_the_order_within_a_client_continues_the_same_stream() -> None:
    labels = labels_in_any_order(2)
    share = heterogeneous(labels, 16, 0.5, 0)[0]
    assert len(np.flatnonzero(np.diff(labels[share].astype(int)) < 0)) > 300  # classes are mixed
    assert np.array_equal(share, heterogeneous(labels, 16, 0.5, 0)[0])
    assert not np.array_equal(share, heterogeneous(labels, 16, 0.5, 1)[0][: len(share)])


@given(
    st.integers(1, 12),
    st.sampled_from([1e-4, 0.05, 0.3, 1.0, 30.0]),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 40), min_size=2, max_size=10),
)
def test_every_image_goes_to_exactly_one_client_and_none_has_too_few(
    clients, concentration, seed, per_class
) -> None:
    labels = np.repeat(np.arange(len(per_class)), per_class)
    assume(len(labels) > 0)
    try:
        shares = heterogeneous(labels, clients, concentration, seed)
    except DataError:
        if len(labels) >= 40 * clients and concentration >= 0.3:
            raise
        return
    assert len(shares) == clients
    assert min(len(share) for share in shares) >= 10
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(labels)))


@given(st.integers(1, 30), st.integers(300, 500), st.integers(0, 100))
def test_the_homogeneous_partition_is_even(clients, count, seed) -> None:
    shares = homogeneous(count, clients, seed)
    assert sorted(np.concatenate(shares).tolist()) == list(range(count))
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    again = homogeneous(count, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


def test_the_homogeneous_partition_mixes_the_classes() -> None:
    labels = np.repeat(np.arange(10), 500)
    counts = np.array(table(labels, homogeneous(5000, 10, 0)))
    assert counts.min() > 25
    assert counts.max() < 80


def test_too_few_images_are_refused_with_a_remedy() -> None:
    labels = np.zeros(79, dtype=int)
    with pytest.raises(DataError, match="79 images could not be divided among 8 clients so that"):
        heterogeneous(labels, 8, 0.5, 0)
    with pytest.raises(DataError, match="cannot give each of 8 clients 10; use fewer clients"):
        homogeneous(79, 8, 0)
    with pytest.raises(DataError, match=r"concentration 0\.0001, 1000 attempts"):
        heterogeneous(np.zeros(200, dtype=int), 8, 1e-4, 0)
