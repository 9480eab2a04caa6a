"""A model whose local latents are integrated out at their client: a likelihood of the global latents alone.

    log p(y_m | Z_G)  =  sum over the units u of client m of  log int p(y_u, z | Z_G) dz

`integration` has the integral, `rules` how it is computed. The likelihood is not a sum over rows. Prior times
likelihood is the model of PVI, so a client's entry is a Gaussian of Z_G, and latents of units are in nothing that a
client sends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import singledispatch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Data, LatentModel, Model, PredictiveModel
from cavity.core.base_model import Ratios
from cavity.core.fields import as_number
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.models.latent_prior import SERVER, prior_in
from cavity.models.mixed import likelihood, nested_likelihood
from cavity.models.mixed.grouped_regression import GroupedRegression
from cavity.models.mixed.rules import MOST_LATENTS, Rule
from cavity.models.numpyro.globals_only import as_rows
from cavity.models.numpyro.latent_model import NumpyroModel
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws

WIDER = 0.5  # by which logs of sds are raised where orders of nested groups are compared, or two sds if that is less
REACH = 0.3  # from the posterior mean along each parameter, or one sd if that is less: where orders are compared


class MarginalModel(PredictiveModel):
    """A model with local latents as prior and marginal likelihood of its global latents.

    Attributes:
        latent: the model with its local latents.
        prior: of Z_G where that is Gaussian, else the base of a correction, which the server owns.
        corrected: whether there is a correction.
        rule: how local latents are integrated out.
        correction_weight: of the correction.
    """

    latent: LatentModel
    prior: Gaussian
    corrected: bool = eqx.field(static=True)
    rule: Rule = Rule()
    correction_weight: Float[Array, ""] = eqx.field(converter=as_number, default=1.0)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return self.latent.global_names

    @property
    def ratios(self) -> Ratios | None:
        return self.latent.ratios

    @property
    def _start(self) -> Float[Array, " d"]:
        return self.latent.start[0]

    @property
    def has_kinds(self) -> bool:
        return self.latent.has_kinds

    def log_prob(self, theta: Float[Array, " d"], data: Data) -> Float[Array, ""]:
        if _is_servers(data.batch):
            correction = self.latent.log_prior(self.latent.theta, theta) - self.prior.log_prob(theta)
            return jnp.sum(jnp.asarray(data.weight)).astype(theta.dtype) * correction
        in_units = self.latent.log_outcome_scale * jnp.sum(jnp.asarray(data.weight)).astype(theta.dtype)
        if (nested := _nested(self.latent)) is not None:
            return nested_likelihood.log_likelihood(nested, self.rule, theta, data) - in_units
        return likelihood.log_likelihood(self.latent, self.rule, theta, data) - in_units

    @property
    def row_cost(self) -> float:
        nested = _nested(self.latent)
        return self.rule.cost(self.latent.num_local) if nested is None else nested_likelihood.cost(nested, self.rule)

    @property
    def resolution(self) -> float:
        return 0.0 if _nested(self.latent) is None else nested_likelihood.RESOLUTION

    def rows_near(self, posterior: Gaussian, data: Data) -> Data:
        if _is_servers(data.batch):
            return data
        mean, sds = posterior.mean, jnp.sqrt(posterior.variance)
        if (nested := _nested(self.latent)) is not None:
            raised = mean + jnp.where(nested.is_log_sd, jnp.minimum(2.0 * sds, WIDER), 0.0)
            return nested_likelihood.rows_near(nested, self.rule, jnp.stack([mean, raised]), data)
        steps = jnp.diag(jnp.minimum(sds, REACH))
        points = jnp.concatenate([mean[None], mean + steps, mean - steps])
        return likelihood.rows_near(self.latent, self.rule, points, data)

    def refinement(
        self, theta: Float[Array, "s d"], data: Data
    ) -> tuple[Int[Array, ""], Int[Array, ""], Float[Array, " s"]]:
        """The order of the rule at a client, a finer one, and by how much that changes its log likelihood at theta."""
        if (nested := _nested(self.latent)) is not None:
            return nested_likelihood.refinement(nested, self.rule, theta, data)
        return likelihood.refinement(self.latent, self.rule, theta, data)

    def server_entries(self) -> dict[str, Data]:
        if not self.corrected:
            return {}
        weight = np.full(1, float(self.correction_weight))
        return {SERVER: Data({SERVER: np.ones(1)}, weight, np.asarray(1))}

    def prepare(self, batch: PyTree) -> Data:
        return self.latent.prepare(batch)

    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        return None if _is_servers(value) else self.latent.unit_labels(value)

    def constrain(self, theta: Float[Array, " d"]) -> PyTree:
        """The latents in the terms of the model's author."""
        return self.latent.constrain(self.latent.theta, theta)

    @property
    def remarks(self) -> tuple[str, ...]:
        nested = _nested(self.latent)
        if nested is not None:
            return (*self.latent.remarks, nested_likelihood.describe(nested, self.rule))
        return (*self.latent.remarks, self.rule.describe(self.latent.num_local))

    def with_order(self, order: int | None) -> MarginalModel:
        """The same model with another rule of integration.

        Args:
            order: nodes per latent where units have one or two latents (1 is Laplace's method), the number of points
                where they have more; None is the default.

        Returns:
            The model.
        """
        return replace(self, rule=Rule(order))

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        expected = getattr(self.latent, "expected_outcome", None)
        if expected is None:
            raise CavityError(f"{type(self.latent).__name__} has no predictions")
        draw_key, outcome_key = jax.random.split(key)
        draws = posterior.sample(draw_key, (num_draws or DEFAULT_DRAWS,))
        keys = jax.random.split(outcome_key, len(draws))
        return prediction_from_draws(jax.vmap(lambda key, z: expected(None, z, x, key, None, None))(keys, draws))


def _nested(model: LatentModel) -> GroupedRegression | None:
    """The model, where its groups are within groups."""
    return model if isinstance(model, GroupedRegression) and model.num_inner else None


def _is_servers(batch: PyTree) -> bool:
    """Whether these rows are the server's own, which have the form of no client's."""
    return isinstance(batch, Mapping) and set(batch) == {SERVER}


def marginal_model(model: LatentModel, *, order: int | None = None) -> MarginalModel:
    """A model with local latents, whose clients integrate them out.

    Args:
        model: with few local latents per unit, such as `numpyro_model(...)`.
        order: nodes of the quadrature per latent where units have one or two latents (1 is Laplace's method), the
            number of points where they have more; None is the default.

    Returns:
        The model for PVI.

    Raises:
        CavityError: where the latents cannot be integrated out, with the reason; SFVI takes such models.
    """
    if model.num_local > MOST_LATENTS:
        raise CavityError(
            f"a unit has {model.num_local} local latents, and at most {MOST_LATENTS} can be integrated out at a "
            "client; use SFVI"
        )
    if jax.tree.leaves(model.theta):
        raise CavityError("the model has learned parameters (`numpyro.param`), which SFVI finds; or give them a prior")
    if getattr(model, "draws_rows", False):
        raise CavityError("a plate of the model draws rows, but the latents of a unit need all of its rows; use SFVI")
    if order is not None and (order < 1 or (model.num_local > 2 and order != 1 and order % 2)):
        raise CavityError(
            f"`order` is at least 1, and even where it counts points (three or more latents), not {order}"
        )
    return integrated_out(model, Rule(order))


def integrated_out(model: LatentModel, rule: Rule) -> MarginalModel:
    """The model with its local latents integrated out by a rule, at the first values of its learned parameters."""
    prior, corrected = prior_in(FullGaussian, model)
    return MarginalModel(latent=model, prior=prior, corrected=corrected, rule=rule)


@singledispatch
def with_likelihood(model: Model | LatentModel) -> Model:
    """A model as prior and likelihood: the same, or with its local latents integrated out."""
    return as_rows(model)


@with_likelihood.register(LatentModel)
def _(model: LatentModel) -> Model:
    return marginal_model(model)


@with_likelihood.register(NumpyroModel)
def _(model: NumpyroModel) -> Model:
    return marginal_model(model) if any(kind.locals_ for kind in model.kinds) else as_rows(model)
