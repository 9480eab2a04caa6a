"""A network of equinox, flax or your own as a model, with a Gaussian over the pytree of its parameters."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Likelihood, PredictiveModel, PredictorModel
from cavity.core.types import Leaf
from cavity.distributions import DiagonalGaussian
from cavity.models.function import TreeModel
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws


class NetworkModel(TreeModel, PredictorModel, PredictiveModel):
    """y ~ likelihood(apply(parameters, x)), mean field. Build it with `network_model` or `equinox_model`.

    Attributes:
        prior: over the flat vector of parameters.
        likelihood: of an outcome given its predictors.
        template: the parameters' pytree; its values do not matter.
        apply: parameters and inputs [n, ...] to predictors [n, k].
    """

    prior: DiagonalGaussian
    likelihood: Likelihood
    template: PyTree
    apply: Callable[[PyTree, Array], Array] = eqx.field(static=True)

    def forward(self, theta: Float[Array, " d"], x: Leaf) -> Float[Array, "n k"]:
        """The predictors at one flat vector of parameters."""
        inputs = jnp.asarray(x)
        inputs = inputs.astype(theta.dtype) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs
        return self.apply(self.parameters(theta), inputs)

    def predictor(self, theta: Float[Array, " d"], batch: PyTree) -> tuple[Float[Array, "n k"], Leaf]:
        x, y = batch
        f = self.forward(theta, x)
        return f, jnp.asarray(y, f.dtype)

    def predict(
        self, posterior: DiagonalGaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None
    ) -> Prediction:
        draws = posterior.sample(key, (num_draws or DEFAULT_DRAWS,))
        return prediction_from_draws(jax.vmap(lambda theta: self.likelihood.mean(self.forward(theta, x)))(draws))


def network_model(
    apply: Callable[[PyTree, Array], Array], parameters: PyTree, likelihood: Likelihood, *, prior_scale: float = 1.0
) -> NetworkModel:
    """Y ~ likelihood(apply(parameters, x)), with N(0, prior_scale^2) on every parameter, mean field.

    Args:
        apply: parameters and a batch of inputs [n, ...] to predictors [n, k]; for a flax module its `apply`.
        parameters: a pytree of arrays with the right shapes and precision (for flax, what `init` returns).
        likelihood: of an outcome given its k predictors, such as `CategoricalSoftmax(10)`.
        prior_scale: in units of a weight.

    Data are pairs (x, y). A network of Cavity's own, `mlp_classifier`, also has local reparameterisation.
    """
    flat = ravel_pytree(parameters)[0]
    prior = DiagonalGaussian(jnp.zeros_like(flat), jnp.full_like(flat, prior_scale**-2))
    return NetworkModel(prior, likelihood, parameters, apply)


def equinox_model(module: eqx.Module, likelihood: Likelihood, *, prior_scale: float = 1.0) -> NetworkModel:
    """The same for an equinox module, which maps one input to its k predictors.

    Example:
        >>> from cavity.likelihoods import CategoricalSoftmax
        >>> network = eqx.nn.MLP(2, 3, width_size=4, depth=1, key=jax.random.key(0))
        >>> equinox_model(network, CategoricalSoftmax(3)).prior.dimension
        27
    """
    parameters, rest = eqx.partition(module, eqx.is_inexact_array)
    return network_model(
        lambda parameters, x: jax.vmap(eqx.combine(parameters, rest))(x),  # pyright: ignore[reportArgumentType]
        parameters,
        likelihood,
        prior_scale=prior_scale,
    )
