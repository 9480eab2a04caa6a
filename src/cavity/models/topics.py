"""ProdLDA, a topic model as a product of experts (Srivastava and Sutton, 2017; SFVI, section 4.2).

    T_k ~ N(0, s^2)^words                      a topic's weight of each word           global, Z_G
    W_d ~ N(alpha, 1)^topics                   a document's                            local, one unit per document
    c_d ~ Multinomial(softmax(softmax(W_d) T))

The paper prints Dirichlet topics inside softmax(T W) with Gaussian W, which is almost uniform over words, whatever T
and W. The model that is meant has unconstrained topics and mixing weights softmax(W).

theta is alpha and log s, by empirical Bayes. Mixing weights do not change where alpha is added to all of W_d, so alpha
has no effect on words; it is included because the paper has it. With `amortised=True` an inference network is in theta
too: the mean and the log scale of q(W_d) are the outputs of one hidden layer with input log(1 + c_d).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, LatentModel
from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.models.glm.columns import units_of

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
START_KEY = 0x70D1
START_SPREAD, START_SCALE = 0.5, 0.1


class ProdLDA(LatentModel):
    """Topics over a vocabulary; made by `prodlda`.

    Attributes:
        num_topics: how many.
        num_words: the size of the vocabulary.
        prior_scale: where s starts.
        hidden: the width of the inference network; None gives every document numbers of its own.
    """

    num_topics: int = eqx.field(static=True)
    num_words: int = eqx.field(static=True)
    prior_scale: float = eqx.field(static=True)
    hidden: int | None = eqx.field(static=True)

    @property
    def num_global(self) -> int:
        return self.num_topics * self.num_words

    @property
    def num_local(self) -> int:
        return self.num_topics

    @property
    def independent_rows(self) -> bool:
        return True

    @property
    def theta(self) -> dict[str, Array | dict[str, Array]]:
        learned: dict[str, Array | dict[str, Array]] = {
            "alpha": jnp.zeros(()),
            "log_scale_of_topics": jnp.asarray(math.log(self.prior_scale)),
        }
        if self.hidden is None:
            return learned
        first, last = jax.random.split(jax.random.key(START_KEY))
        num_out = 2 * self.num_topics
        return learned | {
            "encoder": {
                "first": jax.random.normal(first, (self.num_words, self.hidden)) / math.sqrt(self.num_words),
                "first_bias": jnp.zeros(self.hidden),
                "last": 0.1 * jax.random.normal(last, (self.hidden, num_out)) / math.sqrt(self.hidden),
                "last_bias": jnp.zeros(num_out),
            }
        }

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return entry_names(jax.eval_shape(self.constrain, self.theta, jnp.zeros(self.num_global)))

    @property
    def start(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        noise = jax.random.normal(jax.random.key(START_KEY), (self.num_global,))
        return START_SPREAD * noise, jnp.full_like(noise, START_SCALE)

    def topics(self, z_global: Float[Array, " g"]) -> Float[Array, "topics words"]:
        """T: the larger a word's weight, the more often it occurs in documents with much of the topic."""
        return z_global.reshape(self.num_topics, self.num_words)

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        log_scale = theta["log_scale_of_topics"]
        white = z_global * jnp.exp(-log_scale)
        return -0.5 * jnp.sum(white**2) - self.num_global * (log_scale + HALF_LOG_2PI)

    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        counts, log_coefficient = data.batch
        dtype = z_global.dtype
        counts = jnp.asarray(counts).astype(dtype)
        logits = jax.nn.softmax(z_local) @ self.topics(z_global)
        # sum over words of c log softmax(logits)
        words = jnp.sum(counts * logits, axis=1) - jnp.sum(counts, axis=1) * jax.nn.logsumexp(logits, axis=1)
        words = (words + jnp.asarray(log_coefficient, dtype)) * jnp.asarray(data.weight, dtype)
        own = -0.5 * jnp.sum((z_local - theta["alpha"]) ** 2, axis=1) - self.num_topics * HALF_LOG_2PI
        return words + own

    def encode(self, theta: PyTree, data: Data) -> tuple[Float[Array, "u l"], Float[Array, "u l"]] | None:
        if self.hidden is None:
            return None
        net = theta["encoder"]
        seen = jnp.log1p(jnp.asarray(data.batch[0]).astype(net["first"].dtype))
        out = jax.nn.softplus(seen @ net["first"] + net["first_bias"]) @ net["last"] + net["last_bias"]
        # scales below 1, the prior's, and about 1/2 at first: a long document cannot make one explode
        return out[:, : self.num_topics], -jax.nn.softplus(out[:, self.num_topics :])

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> dict[str, Array]:
        return {
            "alpha": theta["alpha"],
            "scale": jnp.exp(theta["log_scale_of_topics"]),
            "topics": self.topics(z_global),
        }

    def prepare(self, value: PyTree) -> Data:
        counts = np.asarray(value[0] if isinstance(value, tuple) else value)  # a pair has been prepared already
        if counts.ndim != 2 or counts.shape[1] != self.num_words:
            raise DataError(
                f"counts have the shape {counts.shape}; give one row per document and a column for each of the "
                f"{self.num_words} words"
            )
        if counts.dtype.kind not in "biuf" or not np.isfinite(counts).all():
            raise DataError("counts hold text, missing or infinite values; a word that does not occur has count 0")
        if (counts < 0).any() or (counts != np.round(counts)).any():
            raise DataError("counts must be whole numbers from 0 on: how often each word occurs in each document")
        if not len(counts):
            raise DataError("it has no rows; leave this client out")
        # log of l! / prod c!, which depends on no parameter
        coefficient = _log_factorial(counts.sum(axis=1, dtype=float)) - _log_factorial(counts).sum(axis=1)
        small = np.uint16 if counts.max() < 2**16 else np.uint32
        num_rows = len(counts)
        batch = (counts.astype(small), coefficient)
        return Data(batch, np.ones(num_rows), np.asarray(num_rows), units_of(None, num_rows))

    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        return None


def _log_factorial(counts: np.ndarray) -> np.ndarray:
    distinct, places = np.unique(counts, return_inverse=True)
    return np.array([math.lgamma(count + 1.0) for count in distinct.tolist()])[places].reshape(counts.shape)


def prodlda(
    num_topics: int, num_words: int, *, prior_scale: float = 1.0, amortised: bool = False, hidden: int = 100
) -> ProdLDA:
    """A topic model; a client's data are its counts [documents, words].

    Fit it with `SFVI(model, dtype=jnp.float32, batch_size=..., coupled=False, dense=False)`: a batch is some of each
    client's documents with their latents.

    Args:
        num_topics: how many topics.
        num_words: the size of the vocabulary.
        prior_scale: where the scale of the topics' prior starts.
        amortised: whether an inference network, learned by all clients, gives q(W_d) from a document's counts.
        hidden: its width.

    Example:
        >>> model = prodlda(3, 5)
        >>> model.num_global, model.num_local
        (15, 3)
    """
    if num_topics < 2 or num_words < 2 or hidden < 1:
        raise CavityError(f"topics need at least two of them and two words, not {num_topics} and {num_words}")
    if not prior_scale > 0:
        raise CavityError(f"the scale of the topics must be positive, not {prior_scale}")
    return ProdLDA(num_topics, num_words, float(prior_scale), hidden if amortised else None)
