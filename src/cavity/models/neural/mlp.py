"""A Bayesian multi-layer perceptron, for classes and for numbers, with local reparameterisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Likelihood, PredictiveModel, PredictorDraws
from cavity.core.checks import network_features, network_rows
from cavity.core.random import standard_normal
from cavity.core.types import Leaf
from cavity.distributions import DiagonalGaussian
from cavity.distributions.gaussian import GaussianDensity
from cavity.errors import CavityError, DataError
from cavity.likelihoods import CategoricalSoftmax, GaussianNoise
from cavity.models.neural.layers import layer_names, num_weights, unpack_layers
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws


class MLP(PredictorDraws, PredictiveModel):
    """y ~ likelihood(f), f a perceptron of x, with a mean-field Gaussian over all weights.

    Attributes:
        prior: over the weights of all layers in a row, each layer's matrix and then its biases.
        likelihood: of one outcome given the last layer.
        sizes: the widths of all layers, from the number of features to the number of predictors.
        activation: between layers.
    """

    prior: DiagonalGaussian
    likelihood: Likelihood
    sizes: tuple[int, ...] = eqx.field(static=True)
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.relu)

    def __check_init__(self) -> None:
        if self.prior.dimension != num_weights(self.sizes):
            weights = num_weights(self.sizes)
            raise CavityError(
                f"the prior has dimension {self.prior.dimension}, the layers {self.sizes} have {weights} weights"
            )
        if self.sizes[-1] != self.likelihood.num_predictors:
            raise CavityError(
                f"the last layer has {self.sizes[-1]} units, the likelihood needs {self.likelihood.num_predictors}"
            )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return layer_names(self.sizes)

    def forward(self, theta: Float[Array, " d"], x: Float[Array, "n p"]) -> Float[Array, "n k"]:
        """The predictors at one vector of weights."""
        *hidden, (weights, biases) = unpack_layers(theta, self.sizes)
        for w, b in hidden:
            x = self.activation(x @ w + b)
        return x @ weights + biases

    def predictor(self, theta: Float[Array, " d"], batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        x, y = batch
        return self.forward(theta, x), y

    def draw_predictor(self, key: PRNGKeyArray, q: GaussianDensity, batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        """Given the layer below, the input to each unit is Gaussian. These inputs are drawn instead of the weights."""
        x, y = batch
        means, variances = unpack_layers(q.mean, self.sizes), unpack_layers(q.variance, self.sizes)
        keys = jax.random.split(key, len(means))
        for layer, ((w, b), (vw, vb)) in enumerate(zip(means, variances, strict=True)):
            centre, spread = x @ w + b, x**2 @ vw + vb
            x = centre + jnp.sqrt(spread) * standard_normal(keys[layer], *centre.shape, centre.dtype)
            if layer < len(means) - 1:
                x = self.activation(x)
        return x, y

    def prepare(self, batch: PyTree) -> PyTree:
        x, y = network_rows(batch, self.sizes[0])
        if problem := self.likelihood.check(y):
            raise DataError(problem)
        return x, y.astype(np.float32)

    def predict(
        self, posterior: DiagonalGaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None
    ) -> Prediction:
        x = jnp.asarray(network_features(x, self.sizes[0]))
        posterior = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), posterior)

        def one(key: PRNGKeyArray) -> Array:
            f, _ = self.draw_predictor(key, posterior, (x, x[:, 0]))  # no outcome is used
            return self.likelihood.mean(f)

        return prediction_from_draws(jax.lax.map(one, jax.random.split(key, num_draws or DEFAULT_DRAWS // 10)))


def _mlp(likelihood: Likelihood, sizes: Sequence[int], prior_scale: float) -> MLP:
    # networks use single precision, whatever JAX's default is
    ones = jnp.ones(num_weights(sizes), jnp.float32)
    prior = DiagonalGaussian(0 * ones, ones / jnp.float32(prior_scale) ** 2)
    return MLP(prior, likelihood, tuple(sizes))


def mlp_classifier(num_features: int, hidden: Sequence[int], num_classes: int, *, prior_scale: float = 1.0) -> MLP:
    """A perceptron with softmax outcomes 0, ..., num_classes - 1, and N(0, prior_scale^2) on every weight."""
    return _mlp(CategoricalSoftmax(num_classes), (num_features, *hidden, num_classes), prior_scale)


def mlp_regression(num_features: int, hidden: Sequence[int], *, noise_sd: float, prior_scale: float = 1.0) -> MLP:
    """A perceptron with Gaussian outcomes of known noise, and N(0, prior_scale^2) on every weight."""
    return _mlp(GaussianNoise(noise_sd), (num_features, *hidden, 1), prior_scale)
