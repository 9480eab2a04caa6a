"""Any network, of equinox, flax or one's own, as a model: its parameters are a pytree, and a Gaussian is over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from cavity.distributions import DiagonalGaussian
from cavity.interfaces import Likelihood
from cavity.models.function import FunctionModel


def network_model(
    apply: Callable[[PyTree, Array], Array], parameters: PyTree, likelihood: Likelihood, *, prior_scale: float = 1.0
) -> FunctionModel:
    """Y ~ likelihood(apply(parameters, x)), with N(0, prior_scale^2) on every parameter, mean field.

    Args:
        apply: parameters and a batch of inputs [n, ...] to predictors [n, k]; for a flax module its `apply`.
        parameters: a pytree of arrays with the right shapes and precision (for flax, what `init` returns).
        likelihood: of an outcome given its k predictors, such as `CategoricalSoftmax(10)`.
        prior_scale: in units of a weight.

    Data are pairs (x, y). A network of Cavity's own, `mlp_classifier`, also has local reparameterisation.
    """
    flat = ravel_pytree(parameters)[0]

    def predictors(parameters: PyTree, x: Any) -> Array:
        x = jnp.asarray(x)
        return apply(parameters, x.astype(flat.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x)

    def log_likelihood(parameters: PyTree, batch: PyTree) -> Array:
        x, y = batch
        return likelihood.log_prob(predictors(parameters, x), jnp.asarray(y, flat.dtype))

    precision = jnp.full_like(flat, prior_scale**-2)
    return FunctionModel(
        log_likelihood=log_likelihood,
        template=parameters,
        prior=DiagonalGaussian(jnp.zeros_like(flat), precision),
        predictor=lambda parameters, x: likelihood.mean(predictors(parameters, x)),
    )


def equinox_model(module: eqx.Module, likelihood: Likelihood, *, prior_scale: float = 1.0) -> FunctionModel:
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
