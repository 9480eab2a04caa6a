"""Outcomes in 0, ..., K-1, by softmax against the first class."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from cavity.core import OutcomeDraws, PowerIntegral
from cavity.core.fields import Number
from cavity.core.likelihood import Outcomes


class CategoricalLogit(PowerIntegral, OutcomeDraws):
    """p(y = c | f) proportional to exp(f_c), with f_0 = 0 for the reference class and K - 1 free predictors.

    With two classes this is the logistic likelihood. The reference makes every coefficient a log odds ratio
    against class 0, and removes directions that the data do not identify.
    """

    ratio: ClassVar[str | None] = "odds ratio"

    is_discrete: ClassVar[bool] = True
    has_classes: ClassVar[bool] = True
    num_classes: int = eqx.field(static=True)

    @property
    def num_predictors(self) -> int:
        return self.num_classes - 1

    def _log_probabilities(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch classes"]:
        reference = jnp.zeros((*f.shape[:-1], 1), f.dtype)
        return jax.nn.log_softmax(jnp.concatenate([reference, f], axis=-1))

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        log_probabilities = self._log_probabilities(f)
        labels = jnp.broadcast_to(jnp.asarray(y, int), f.shape[:-1])
        return jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jnp.exp(self._log_probabilities(f))

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        return jax.nn.logsumexp(power * self._log_probabilities(f), axis=-1)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return jax.random.categorical(key, self._log_probabilities(f))

    def check(self, y: np.ndarray) -> str | None:
        return check_classes(y, self.num_classes)


class CategoricalSoftmax(PowerIntegral, OutcomeDraws):
    """p(y = c | f) proportional to exp(f_c), with one predictor per class: the last layer of a network.

    The sum of all predictors is not identified; use `CategoricalLogit` for a regression.
    """

    is_discrete: ClassVar[bool] = True
    has_classes: ClassVar[bool] = True
    num_classes: int = eqx.field(static=True)

    @property
    def num_predictors(self) -> int:
        return self.num_classes

    def log_prob(self, f: Float[Array, "*batch k"], y: Outcomes) -> Float[Array, " *batch"]:
        labels = jnp.broadcast_to(jnp.asarray(y, int), f.shape[:-1])
        return jnp.take_along_axis(jax.nn.log_softmax(f), labels[..., None], axis=-1)[..., 0]

    def mean(self, f: Float[Array, "*batch k"]) -> Float[Array, "*batch *outcome"]:
        return jax.nn.softmax(f)

    def log_power_integral(self, f: Float[Array, "*batch k"], power: Number) -> Float[Array, " *batch"]:
        return jax.nn.logsumexp(power * jax.nn.log_softmax(f), axis=-1)

    def draw(self, key: PRNGKeyArray, f: Float[Array, "*batch k"]) -> Array:
        return jax.random.categorical(key, f)

    def check(self, y: np.ndarray) -> str | None:
        return check_classes(y, self.num_classes)


def check_classes(y: np.ndarray, num_classes: int) -> str | None:
    """What is wrong with classes that should be 0 to num_classes - 1, or None."""
    values = np.unique(y)
    if not np.isin(values, np.arange(num_classes)).all():
        seen, last = values[:5].tolist(), num_classes - 1
        return f"the outcome takes the values {seen}; code the {num_classes} classes as 0 to {last}"
    return None
