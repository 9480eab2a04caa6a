"""Tags from the words of a text: f is the mean over its words w of W[w], linear with a weight per word and tag.

This is the model of the StackOverflow task: with 10,000 words and 500 tags it has five million weights.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PyTree

from cavity.core import Likelihood, PredictorModel
from cavity.core.checks import pair
from cavity.core.types import Leaf
from cavity.distributions import DiagonalGaussian
from cavity.errors import DataError
from cavity.likelihoods.tags import TagsLogit


class BagOfWords(PredictorModel):
    """y ~ tags(f) with f = (1 / |words|) sum of W[w], and independent Gaussians on W.

    A row lists the numbers of its words and the numbers of its tags, both padded with -1. Its size depends on the
    length of the text, not on the size of the vocabulary.

    Attributes:
        prior: over W, flattened, row after row; all computations use its floating-point precision.
        num_words: how many words are known.
        likelihood: of the tags, with a predictor each.
    """

    prior: DiagonalGaussian
    num_words: int = eqx.field(static=True)
    likelihood: Likelihood

    @property
    def parameter_names(self) -> tuple[str, ...]:
        tags = range(self.likelihood.num_predictors)
        return tuple(f"word {word}: tag {tag}" for word in range(self.num_words) for tag in tags)

    def predictor(self, theta: Float[Array, " d"], batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        words, tags = batch
        weights = theta.reshape(self.num_words, self.likelihood.num_predictors)
        there = (words >= 0).astype(theta.dtype)
        share = there / jnp.maximum(jnp.sum(there, axis=-1, keepdims=True), 1)
        return jnp.einsum("nl,nlk->nk", share, weights[jnp.maximum(words, 0)]), tags

    def prepare(self, batch: PyTree) -> PyTree:
        words, tags = (np.asarray(part) for part in pair(batch, "give a pair (words, tags)"))
        if words.ndim != 2 or not np.issubdtype(words.dtype, np.integer):
            raise DataError("words must be whole numbers, one row per text, padded with -1")
        if words.size and (words.min() < -1 or words.max() >= self.num_words):
            raise DataError(f"words are numbered from 0 to {self.num_words - 1} (-1 for padding)")
        if problem := self.likelihood.check(tags):
            raise DataError(problem)
        if len(words) != len(tags):
            raise DataError(f"there are {len(words)} rows of words and {len(tags)} of tags; they must be the same rows")
        return words.astype(np.int32), tags.astype(np.int32)


def bag_of_words(
    num_words: int, num_tags: int, *, prior_scale: float = 1.0, dtype: DTypeLike = np.float32
) -> BagOfWords:
    """N(0, prior_scale^2) on every weight; in single precision, as there may be millions."""
    size = num_words * num_tags
    prior = DiagonalGaussian(jnp.zeros(size, dtype), jnp.full(size, prior_scale**-2.0, dtype))
    return BagOfWords(prior=prior, num_words=num_words, likelihood=TagsLogit(num_tags))
