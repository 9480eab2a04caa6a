"""Tags from words: the likelihood against Bernoullis one by one, the predictor against a loop, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cavity.errors import DataError
from cavity.likelihoods import BernoulliLogit, TagsLogit
from cavity.models import bag_of_words
from tests.contracts import likelihood as contract

RNG = np.random.default_rng(0)
TAGS = np.array([[0, 2, -1], [-1, -1, -1], [3, 1, 0], [-1, 2, -1]])
WORDS = np.array([[0, 4, 4], [1, -1, -1], [-1, 3, 2], [-1, -1, -1]])


def test_tags_are_independent_bernoullis():
    f = jnp.asarray(RNG.normal(size=(4, 4)) * 3)
    there = np.array([[k in row for k in range(4)] for row in TAGS], float)
    apart = sum(BernoulliLogit().log_prob(f[:, k : k + 1], there[:, k]) for k in range(4))
    np.testing.assert_allclose(TagsLogit(4).log_prob(f, TAGS), apart, rtol=1e-12)


def test_the_likelihood_keeps_its_promises():
    f = jnp.asarray(RNG.normal(size=(4, 4)))
    subsets = [s for size in range(5) for s in itertools.combinations(range(4), size)]
    outcomes = np.array([[*s, *[-1] * (4 - len(s))] for s in subsets])
    likelihood = TagsLogit(4)
    contract.check_normalises(likelihood, f, outcomes, np.ones(len(outcomes)))
    contract.check_elementwise(likelihood, f, jnp.asarray(TAGS))
    there = np.array([[k in s for k in range(4)] for s in subsets], float)
    np.testing.assert_allclose(likelihood.mean(f), contract.probabilities(likelihood, f, outcomes) @ there, rtol=1e-9)
    contract.check_rejects(likelihood, TAGS, np.array([[0, 4]]), "from 0 to 3")
    contract.check_rejects(likelihood, TAGS, np.array([[1, 1]]), "list each tag once")
    contract.check_rejects(likelihood, TAGS, np.array([[0.5, 1.0]]), "whole numbers")


def test_the_predictor_is_the_mean_of_the_words_weights():
    model = bag_of_words(5, 4)
    theta = RNG.normal(size=20).astype(np.float32)
    f, _ = model.predictor(jnp.asarray(theta), (WORDS, TAGS))
    table = theta.reshape(5, 4)
    for row, words in zip(np.asarray(f), WORDS, strict=True):
        known = [table[word] for word in words if word >= 0]
        np.testing.assert_allclose(row, np.mean(known, axis=0) if known else np.zeros(4), rtol=1e-6)
    assert f.dtype == np.float32
    gradient = jax.grad(lambda theta: jnp.sum(model.row_log_prob(theta, (WORDS, TAGS))))(jnp.asarray(theta))
    assert np.isfinite(gradient).all()
    assert model.parameter_names[5] == "word 1: tag 1"
    assert len(model.parameter_names) == model.prior.dimension


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (WORDS, r"a pair \(words, tags\)"),
        ((WORDS.astype(float), TAGS), "words must be whole numbers"),
        ((WORDS + 1, TAGS), "numbered from 0 to 4"),
        ((WORDS, TAGS + 1), "numbered from 0 to 3"),
        ((WORDS[:3], TAGS), "3 rows of words and 4 of tags"),
    ],
)
def test_bad_rows(batch, message):
    with pytest.raises(DataError, match=message):
        bag_of_words(5, 4).prepare(batch)
