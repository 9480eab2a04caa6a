"""A model with global latents alone as prior and rows, for methods with a Gaussian factor per client.

The latents live on their unconstrained scale. A prior that is no Gaussian there is a Gaussian times a correction,

    p(z) = base(z) * [p(z) / base(z)],

and the correction is one more entry of the ledger, whose owner is the server (`SERVER`): it is refined as a client's
factor is, and the base cancels.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import singledispatch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, LatentModel, Model, PredictiveModel, RowModel
from cavity.core.fields import Number, as_number
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.models.glm.columns import as_mapping
from cavity.models.latent_prior import SERVER, Family, prior_in
from cavity.models.numpyro.latent_model import NumpyroModel
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws


class OnGlobals(Model):
    """A likelihood of rows that see global latents alone, with a Gaussian over their unconstrained values.

    Attributes:
        latent: the model.
        prior: its prior where that is Gaussian, else the base of the correction.
        corrected: whether there is a correction.
        correction_weight: of its row, for methods in which a client's rows count more or less than once.
    """

    latent: eqx.AbstractVar[NumpyroModel]
    prior: eqx.AbstractVar[Gaussian]
    corrected: eqx.AbstractVar[bool]
    correction_weight: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def empty_batch(self) -> dict[str, np.ndarray]:
        """One row of zeros in the form of a client's."""

    def or_correction(
        self, theta: Float[Array, " d"], batch: PyTree, weight: Array, of_rows: Callable[[Array, PyTree], Array]
    ) -> Float[Array, ...]:
        """`of_rows(theta, columns)` of a client; the correction times the weight, in its shape, of the server."""
        columns = {name: column for name, column in batch.items() if name != SERVER}
        if not self.corrected:
            return of_rows(theta, columns)
        # the branches are differentiated apart, so that an impossible row in one leaves the other finite
        return jax.lax.cond(
            jnp.any(batch[SERVER]),
            lambda z: weight.astype(z.dtype) * self._correction(z),
            lambda z: of_rows(z, columns).astype(z.dtype),
            theta,
        )

    def _correction(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        return self.latent.log_prior(self.latent.theta, z) - self.prior.log_prob(z)

    @property
    def has_kinds(self) -> bool:
        return self.latent.has_kinds

    def with_flag(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A client's rows, none of which is the server's."""
        return batch | {SERVER: np.zeros(len(jax.tree.leaves(batch)[0]), bool)} if self.corrected else batch

    def server_entries(self) -> dict[str, Data]:
        if not self.corrected:
            return {}
        batch = self.empty_batch() | {SERVER: np.ones(1, bool)}
        return {SERVER: Data(batch, np.full(1, float(self.correction_weight)), np.asarray(1))}


class GlobalsOnly(OnGlobals, RowModel, PredictiveModel):
    """A NumPyro model without local latents."""

    latent: NumpyroModel
    prior: Gaussian
    corrected: bool = eqx.field(static=True)
    correction_weight: Float[Array, ""] = eqx.field(converter=as_number, default=1.0)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return self.latent.global_names

    def row_log_prob(self, theta: Float[Array, " d"], batch: PyTree) -> Float[Array, " n"]:
        each = jnp.ones(len(jax.tree.leaves(batch)[0]))
        return self.or_correction(theta, batch, each, self.latent.row_log_prob)

    def empty_batch(self) -> dict[str, np.ndarray]:
        return {name: np.zeros((1, *column.shape[1:]), column.dtype) for name, column in self.latent.example.items()}

    def constrain(self, theta: Float[Array, " d"]) -> dict[str, Array]:
        """The latents in the terms of the model's author."""
        return self.latent.constrain(None, theta)

    def prepare(self, batch: PyTree) -> dict[str, np.ndarray]:
        given = {name: column for name, column in as_mapping(batch).items() if name != SERVER}
        return self.with_flag(self.latent.prepare(given).batch)

    def with_correction_weight(self, weight: Number) -> GlobalsOnly:
        """The same model, whose correction has this weight."""
        return GlobalsOnly(latent=self.latent, prior=self.prior, corrected=self.corrected, correction_weight=weight)

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        draw_key, outcome_key = jax.random.split(key)
        draws = posterior.sample(draw_key, (num_draws or DEFAULT_DRAWS,))
        keys = jax.random.split(outcome_key, len(draws))
        outcomes = jax.vmap(lambda key, z: self.latent.expected_outcome(None, z, x, key, None, None))(keys, draws)
        return prediction_from_draws(outcomes)


@singledispatch
def as_rows(model: Model | LatentModel, family: Family = FullGaussian) -> Model:
    """A model with prior and rows: the same, or one with global latents alone in that form.

    Raises:
        CavityError: for local latents, learned parameters, or plates that draw rows, which SFVI is for.
    """
    raise CavityError(f"this method takes a prior and a likelihood of rows, not {type(model).__name__}; use SFVI")


@as_rows.register(Model)
def _(model: Model, family: Family = FullGaussian) -> Model:
    return model


@as_rows.register(NumpyroModel)
def _(model: NumpyroModel, family: Family = FullGaussian) -> Model:
    if sites := ", ".join(latent.name for kind in model.kinds for latent in kind.locals_):
        raise CavityError(f"{sites} stay at their client, and this method has global latents only; use SFVI")
    if model.learned:
        raise CavityError(f"{', '.join(model.learned)} are learned, which SFVI does; or give them a prior")
    if sites := ", ".join(name for kind in model.kinds for name in kind.drawn):
        raise CavityError(f"a plate draws rows of {sites}; leave `subsample_size` out, since solvers draw batches")
    prior, corrected = prior_in(family, model)
    return GlobalsOnly(latent=model, prior=prior, corrected=corrected)
