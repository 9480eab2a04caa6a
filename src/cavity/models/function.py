"""A log likelihood that the user writes as a function of parameters and rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import KeyPath
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Model, PredictiveModel, RowModel
from cavity.core.checks import finite_column
from cavity.distributions.forms import Form
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.models.glm.regression import Scales, gaussian_prior
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws
from cavity.models.row_independence import Company, depends_on_others, some_values

ROWS_CHECKED = 32
WRITE_A_MODEL = "for a likelihood that is not a sum over rows subclass `cavity.core.Model`"
_CHECKED: weakref.WeakSet[Callable[..., Array]] = weakref.WeakSet()  # functions whose rows are independent


class TreeModel(Model):
    """A model whose parameters are a pytree of the user, with a Gaussian over the flat vector; data are any arrays."""

    prior: eqx.AbstractVar[Gaussian]
    template: eqx.AbstractVar[PyTree]

    def __check_init__(self) -> None:
        size = len(self.parameter_names)
        if self.prior.dimension != size:
            raise CavityError(f"the prior has dimension {self.prior.dimension}, the parameters have {size} entries")

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return entry_names(self.template)

    def parameters(self, theta: Float[Array, " d"]) -> PyTree:
        """The flat vector as the user's pytree."""
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, theta.dtype), self.template))[1](theta)

    def prepare(self, batch: PyTree) -> PyTree:
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
        if not arrays or any(array.ndim == 0 for array in arrays):
            raise DataError("data must be arrays with one entry per row along their first axis")
        if len({len(array) for array in arrays}) > 1:
            raise DataError(f"arrays of {sorted({len(array) for array in arrays})} rows; all must have the same rows")
        return jax.tree_util.tree_map_with_path(_numeric_leaf, batch)


class RowFunction(TreeModel, RowModel):
    """What both function models share: `log_likelihood(parameters, batch) -> [n]`."""

    log_likelihood: eqx.AbstractVar[Callable[[PyTree, PyTree], Array]]

    def row_log_prob(self, theta: Float[Array, " d"], batch: PyTree) -> Float[Array, " n"]:
        return self.log_likelihood(self.parameters(theta), batch)

    def prepare(self, batch: PyTree) -> PyTree:
        prepared = super().prepare(batch)
        function = getattr(self.log_likelihood, "__func__", self.log_likelihood)  # a bound method is a temporary object
        if function not in _CHECKED:
            self._check_rows(prepared)
            _CHECKED.add(function)
        return prepared

    def _check_rows(self, batch: PyTree) -> None:
        """Raise CavityError unless the function gives one number per row that depends on that row alone."""
        some = jax.tree.map(lambda leaf: leaf[:ROWS_CHECKED], batch)
        num_rows = len(jax.tree.leaves(some)[0])
        theta = jnp.asarray(some_values(self.prior.mean, self.prior.variance**0.5))
        log_prob = jax.jit(lambda theta, batch: self.log_likelihood(self.parameters(theta), batch))

        def answers(company: Company) -> dict[str, np.ndarray]:
            found = np.asarray(log_prob(theta, company.batch(some)))
            if found.shape != company.rows.shape:
                raise CavityError(
                    f"`log_likelihood` returns an array of the shape {found.shape} for {len(company.rows)} rows, not "
                    f"one number per row; {WRITE_A_MODEL}"
                )
            return {"log_likelihood": found}

        if depends_on_others(answers, num_rows):
            raise CavityError(
                "the value of `log_likelihood` for a row depends on other rows (a mean over rows, their number or "
                f"order, the previous row); compute it in advance, as a column of the data, or {WRITE_A_MODEL}"
            )


class FunctionModel(RowFunction):
    """A model given by a log likelihood of rows, with a Gaussian over the flat vector of its parameters.

    Attributes:
        log_likelihood: log p(row | parameters) for each row of a batch, in JAX. It is checked with the first client's
            data that the value of a row depends on no other row.
        template: a pytree of arrays or numbers with the structure of the parameters (its values do not matter).
        prior: over the flat vector of parameters.

    Example:
        >>> def log_likelihood(p, batch):
        ...     return jax.scipy.stats.t.logpdf(batch, 4.0, p["location"], jnp.exp(p["log_scale"]))
        >>> model = function_model(log_likelihood, {"location": 0.0, "log_scale": 0.0})
    """

    log_likelihood: Callable[[PyTree, PyTree], Array] = eqx.field(static=True)
    template: PyTree
    prior: Gaussian


class PredictiveFunctionModel(RowFunction, PredictiveModel):
    """A `FunctionModel` that also predicts.

    Attributes:
        log_likelihood: as in `FunctionModel`.
        template: as in `FunctionModel`.
        prior: as in `FunctionModel`.
        predictor: `predictor(parameters, x) -> expected outcomes`.
    """

    log_likelihood: Callable[[PyTree, PyTree], Array] = eqx.field(static=True)
    template: PyTree
    prior: Gaussian
    predictor: Callable[[PyTree, PyTree], Array] = eqx.field(static=True)

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        draws = posterior.sample(key, (num_draws or DEFAULT_DRAWS,))
        outcomes = jax.vmap(lambda theta: self.predictor(self.parameters(theta), x))(draws)
        return prediction_from_draws(outcomes)


def _numeric_leaf(path: KeyPath, leaf: PyTree) -> np.ndarray:
    array = np.asarray(leaf)
    if np.issubdtype(array.dtype, np.integer) or array.dtype == bool:
        return array
    label = f"the array '{jax.tree_util.keystr(path, simple=True, separator='.') or 'data'}'"
    return finite_column(array.reshape(-1), label).reshape(array.shape)


def function_model(
    log_likelihood: Callable[[PyTree, PyTree], Array],
    template: PyTree,
    *,
    prior: Gaussian | None = None,
    prior_scale: Scales = 2.5,
    covariance: Form = None,
    predictor: Callable[[PyTree, PyTree], Array] | None = None,
) -> FunctionModel | PredictiveFunctionModel:
    """A model from a log likelihood of rows.

    Args:
        log_likelihood: log p(row | parameters) for each row of a batch, in JAX.
        template: a pytree of arrays or numbers with the structure of the parameters (its values do not matter).
        prior: over the flat vector of parameters; None is N(0, prior_scale^2) for each.
        prior_scale: the standard deviation of the default prior.
        covariance: the form of the default prior and of the posterior, "full", "diagonal" or "isotropic"; None chooses
            full or diagonal by dimension.
        predictor: `predictor(parameters, x) -> expected outcomes`; without it the model makes no predictions.
    """
    if prior is None:
        prior = gaussian_prior(len(entry_names(template)), prior_scale, covariance)
    if predictor is None:
        return FunctionModel(log_likelihood=log_likelihood, template=template, prior=prior)
    return PredictiveFunctionModel(log_likelihood=log_likelihood, template=template, prior=prior, predictor=predictor)
