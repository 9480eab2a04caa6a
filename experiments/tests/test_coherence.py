"""Topic coherence against a double loop and a computation by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavity_experiments.coherence import top_words, umass_coherence

# D(0) = 3, D(1) = 2, D(2) = 2; D(0, 1) = 2, D(0, 2) = 1, D(1, 2) = 0; word 3 is in no document
COUNTS = np.array([[1, 2, 0, 0], [4, 1, 0, 0], [1, 0, 3, 0], [0, 0, 1, 0]])


def brute_force(topic, counts):
    total = 0.0
    for m in range(1, len(topic)):
        for l in range(m):  # noqa: E741
            both = sum(1 for row in counts if row[topic[m]] > 0 and row[topic[l]] > 0)
            alone = sum(1 for row in counts if row[topic[l]] > 0)
            total += np.log((both + 1) / alone)
    return total


def random_problem(seed, num_documents=40, num_words=30, num_topics=4, num_top=6):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.4, size=(num_documents, num_words))
    counts[np.arange(num_words) % num_documents, np.arange(num_words)] += 1  # each word is somewhere
    return top_words(rng.dirichlet(np.full(num_words, 0.1), size=num_topics), num_top), counts


def test_by_hand():
    """Topic (0, 1, 2): log 3/3 + log 2/3 + log 1/2. In the order (2, 1, 0): log 1/2 + log 2/2 + log 3/2."""
    topics = np.array([[0, 1, 2], [2, 1, 0]])
    expected = [np.log(1 / 3), np.log(3 / 4)]
    np.testing.assert_allclose(umass_coherence(topics, COUNTS), expected, rtol=1e-14)
    np.testing.assert_allclose(umass_coherence(topics, COUNTS, mean=True), np.array(expected) / 3, rtol=1e-14)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), num_top=st.integers(2, 10))
def test_a_double_loop_agrees(seed, num_top):
    topics, counts = random_problem(seed, num_top=num_top)
    expected = np.array([brute_force(topic, counts) for topic in topics])
    np.testing.assert_allclose(umass_coherence(topics, counts), expected, rtol=1e-12, atol=1e-12)
    num_pairs = num_top * (num_top - 1) / 2
    np.testing.assert_allclose(umass_coherence(topics, counts, mean=True), expected / num_pairs, rtol=1e-12, atol=1e-12)


def test_only_occurrence_matters_and_any_kind_of_array_will_do():
    topics, counts = random_problem(0)
    expected = umass_coherence(topics, counts)
    for same in (counts > 0, 3 * counts, counts.astype(np.uint8), counts.astype(np.float32), jnp.asarray(counts)):
        np.testing.assert_array_equal(umass_coherence(topics, same), expected)
    np.testing.assert_array_equal(umass_coherence(jnp.asarray(topics), counts), expected)


def test_many_documents_are_counted_exactly():
    """300 documents do not fit in a product of bytes."""
    topics = np.array([[0, 1]])
    np.testing.assert_allclose(umass_coherence(topics, np.ones((300, 2), np.uint8)), [np.log(301 / 300)], rtol=1e-12)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ([[0, 1], [2, 3]], r"words \[3\] are in no document"),
        ([[0, 4]], r"indices from 0 to 3; topics contain \[4\]"),
        ([[0, -1]], r"topics contain \[-1\]"),
        ([[0, 1], [2, 2]], r"topic 1 has a word twice: \[2, 2\]"),
        ([[0], [1]], "pairs of words; each topic has 1"),
    ],
)
def test_what_is_wrong_is_an_error(topics, message):
    with pytest.raises(ValueError, match=message):
        umass_coherence(np.array(topics), COUNTS)


@pytest.mark.parametrize("bad", [np.nan, -1.0])
def test_counts_are_counts(bad):
    counts = COUNTS.astype(float)
    counts[2, 1] = bad
    with pytest.raises(ValueError, match="non-negative"):
        umass_coherence(np.array([[0, 1]]), counts)
    assert np.all(np.isfinite(umass_coherence(np.array([[0, 2]]), counts)))


def test_top_words_are_in_descending_order_and_the_first_of_equal_ones():
    weights = np.array([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    assert top_words(weights, 3).tolist() == [[1, 3, 2], [0, 1, 2]]
    assert top_words(jnp.asarray(weights), 4).tolist() == [[1, 3, 2, 0], [0, 1, 2, 3]]
    assert top_words(np.array([[0, 7, 3]], np.uint8), 2).tolist() == [[1, 2]]
    assert top_words(np.log(weights), 3).tolist() == top_words(weights, 3).tolist()


def test_top_words_of_what_has_none():
    weights = np.full((2, 3), 1 / 3)
    for num_words in (0, 4):
        with pytest.raises(ValueError, match=f"from 1 to 3, the number of words; it is {num_words}"):
            top_words(weights, num_words)
    weights[1, 2] = np.nan
    with pytest.raises(ValueError, match="1 NaN among 6"):
        top_words(weights, 2)
