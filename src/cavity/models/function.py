"""Any log likelihood that a user writes as a function of parameters and rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import PredictiveModel, RowModel
from cavity.core.checks import finite_column
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.models.glm.regression import gaussian_prior
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws
from cavity.models.row_independence import Company, depends_on_others, some_values

ROWS_CHECKED = 32
WRITE_A_MODEL = "for a likelihood that is not a sum over rows subclass `cavity.core.Model`"
_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()  # functions whose rows have been found independent


class TreeModel(PredictiveModel):
    """A model whose parameters are a pytree of the user's, with a Gaussian over them raveled; data are any arrays."""

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


class FunctionModel(TreeModel, RowModel):
    """A model given by `log_likelihood(parameters, batch) -> [n]`, with a Gaussian over the raveled parameters.

    Attributes:
        log_likelihood: log p(row | parameters) for each row of a batch, in JAX. That a row's number depends on no
            other row is checked with the first client's data.
        template: a pytree of arrays or numbers with the structure of the parameters (its values do not matter).
        prior: over the raveled parameters.
        predictor: `predictor(parameters, x) -> expected outcomes`, if predictions are wanted.

    Example:
        >>> def log_likelihood(p, batch):
        ...     return jax.scipy.stats.t.logpdf(batch, 4.0, p["location"], jnp.exp(p["log_scale"]))
        >>> model = function_model(log_likelihood, {"location": 0.0, "log_scale": 0.0})
    """

    log_likelihood: Callable[[PyTree, PyTree], Array] = eqx.field(static=True)
    template: PyTree
    prior: Gaussian
    predictor: Callable[[PyTree, PyTree], Array] | None = eqx.field(static=True, default=None)

    def row_log_prob(self, theta: Float[Array, " d"], batch: PyTree) -> Float[Array, " n"]:
        return self.log_likelihood(self.parameters(theta), batch)

    def prepare(self, batch: PyTree) -> PyTree:
        prepared = super().prepare(batch)
        function = getattr(self.log_likelihood, "__func__", self.log_likelihood)  # of a method, which does not last
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
                "what `log_likelihood` says of a row depends on other rows (a mean over rows, their number or order, "
                f"the row before); compute what is needed beforehand, as a column of the data, or {WRITE_A_MODEL}"
            )

    def predict(self, posterior: Gaussian, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None) -> Prediction:
        if self.predictor is None:
            raise CavityError("this model has no predictor; give `function_model(..., predictor=...)` one")
        predictor = self.predictor
        draws = posterior.sample(key, (num_draws or DEFAULT_DRAWS,))
        outcomes = jax.vmap(lambda theta: predictor(self.parameters(theta), x))(draws)
        return prediction_from_draws(outcomes)


def _numeric_leaf(path: Any, leaf: Any) -> np.ndarray:
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
    prior_scale: Any = 2.5,
    family: type[Gaussian] | None = None,
    predictor: Callable[[PyTree, PyTree], Array] | None = None,
) -> FunctionModel:
    """A model from a function, with N(0, prior_scale^2) on every parameter unless a prior is given."""
    if prior is None:
        prior = gaussian_prior(len(entry_names(template)), prior_scale, family)
    return FunctionModel(log_likelihood=log_likelihood, template=template, prior=prior, predictor=predictor)
