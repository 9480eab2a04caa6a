"""The requested share of labels is flipped, to the requested classes, and no other label changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavity.datasets.contamination import MNIST_FLIPS, flip_by_class, flip_uniformly
from cavity.errors import CavityError

seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0, 1, exclude_max=True)
label_types = st.sampled_from([np.int64, np.int32, np.uint8])
digit_lists = st.lists(st.integers(0, 9), max_size=60)

FLIPS = [
    pytest.param(lambda rng, labels, share: flip_by_class(rng, labels, share, MNIST_FLIPS), id="by class"),
    pytest.param(lambda rng, labels, share: flip_uniformly(rng, labels, share, 10), id="uniformly"),
]


@pytest.mark.parametrize("flip", FLIPS)
@given(seeds, digit_lists, label_types, shares)
def test_the_share_is_exact_and_the_input_does_not_change(flip, seed, digits, dtype, share):
    labels = np.array(digits, dtype=dtype)
    flipped = flip(np.random.default_rng(seed), labels, share)
    assert labels.tolist() == digits
    assert not np.shares_memory(flipped, labels)
    assert flipped.shape == labels.shape
    assert flipped.dtype == np.int64
    # A flip that could keep a label would change fewer rows.
    assert np.sum(flipped != labels) == round(share * len(labels))
    assert set(flipped.tolist()) <= set(range(10))


@given(seeds, digit_lists, shares)
def test_flips_by_class_follow_the_mapping(seed, digits, share):
    labels = np.array(digits, dtype=np.int64)
    flipped = flip_by_class(np.random.default_rng(seed), labels, share, MNIST_FLIPS)
    changed = flipped != labels
    assert flipped[changed].tolist() == [MNIST_FLIPS[digit] for digit in labels[changed]]


def test_the_mapping_of_mnist():
    authors = {0: 1, 1: 7, 2: 6, 3: 4, 4: 3, 5: 8, 6: 0, 7: 6, 8: 1, 9: 0}
    assert dict(enumerate(MNIST_FLIPS)) == authors


@given(seeds, st.integers(2, 6), shares)
def test_any_number_of_classes(seed, num_classes, share):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=40)
    flipped = flip_uniformly(rng, labels, share, num_classes)
    assert np.sum(flipped != labels) == round(share * 40)
    assert set(flipped.tolist()) <= set(range(num_classes))


def test_two_classes_swap():
    labels = np.arange(100) % 2 == 0
    flipped = flip_uniformly(np.random.default_rng(0), labels, 0.3, 2)
    changed = flipped != labels
    assert changed.sum() == 30
    np.testing.assert_array_equal(flipped[changed], 1 - labels[changed].astype(int))


@pytest.mark.parametrize("flip", FLIPS)
def test_rows_are_drawn_from_all_classes_and_positions(flip):
    labels = np.repeat(np.arange(10), 1_000)
    changed = flip(np.random.default_rng(0), labels, 0.4) != labels
    # A hypergeometric count out of 1000, of mean 400 and standard deviation at most 15.5.
    assert np.abs(changed.reshape(10, 1_000).sum(axis=1) - 400).max() < 70
    assert np.abs(changed.reshape(-1, 10).sum(axis=0) - 400).max() < 70


def test_wrong_classes_are_equally_likely():
    labels = np.full(20_000, 3)
    flipped = flip_uniformly(np.random.default_rng(0), labels, 0.9, 5)
    counts = np.bincount(flipped, minlength=5)
    assert counts[3] == 2_000
    # A count of mean 4500 and standard deviation 58.
    assert np.abs(np.delete(counts, 3) - 4_500).max() < 260


def test_a_class_may_map_to_itself():
    labels = np.array([0, 1] * 20)
    flipped = flip_by_class(np.random.default_rng(0), labels, 0.95, (0, 0))
    assert flipped[labels == 0].tolist() == [0] * 20
    assert 18 <= np.sum(flipped[labels == 1] == 0) <= 20


def test_many_classes_in_a_small_type():
    flipped = flip_uniformly(np.random.default_rng(0), np.full(1_000, 127, dtype=np.int8), 0.9, 300)
    assert flipped.min() >= 0
    assert flipped.max() > 255


@pytest.mark.parametrize("flip", FLIPS)
def test_the_result_depends_on_the_generator(flip):
    labels = np.arange(60) % 10

    def rows(seed):
        return flip(np.random.default_rng(seed), labels, 0.5).tolist()

    assert rows(3) == rows(3)
    assert rows(3) != rows(4)


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, 40.0, float("nan"), float("inf")])
def test_a_share_out_of_range(flip, share):
    with pytest.raises(CavityError, match=r"share must be in \[0, 1\)"):
        flip(np.random.default_rng(0), np.arange(10), share)


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 10]), r"must be in \[0, 9\], for 10 classes; they go from 0 to 10"),
        (np.array([-1, 3]), "they go from -1 to 3"),
        (np.array([0.0, 1.0]), "integers; they are float64"),
        (np.eye(10, dtype=int), "shape"),
    ],
)
def test_labels_that_are_not_classes(flip, labels, message):
    with pytest.raises(CavityError, match=message):
        flip(np.random.default_rng(0), labels, 0.1)


@pytest.mark.parametrize("mapping", [(1, 2), (-1, 0), (0.0, 1.0), ((0, 1), (1, 0))])
def test_a_mapping_to_unknown_classes(mapping):
    with pytest.raises(CavityError, match="mapping must give a class"):
        flip_by_class(np.random.default_rng(0), np.array([0, 1]), 0.5, np.array(mapping))


@pytest.mark.parametrize("num_classes", [1, 0])
def test_too_few_classes(num_classes):
    with pytest.raises(CavityError, match="at least two"):
        flip_uniformly(np.random.default_rng(0), np.array([0, 0]), 0.5, num_classes)
