"""A sparse Gaussian process over clients: f ~ GP(0, k), y ~ p(y | f(x)), inducing inputs and hyperparameters included.

Federated sparse Gaussian processes, section 5:

| paper | here |
| --- | --- |
| Z, M of them | `phi`, its first M D entries |
| beta | `phi`, the rest: logs of the numbers of kernel and likelihood |
| p~(Z) = N(0, I) | `inducing_prior` |
| p(beta), log-normal(0, 1) | N(0, 1) of the logs |
| t_k(u given Z, beta) | `FactorForm`: `Decoupled` (DPO), `Coupled` (CPO) |

Inputs should be standardised: p~(Z) and the prior of the length scales assume it.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from cavity.core import Data, Likelihood, Noisy, PredictiveModel, ReportedModel
from cavity.core.checks import feature_names, numeric_matrix, numeric_vector, pair, same_rows
from cavity.core.fields import Number, require
from cavity.core.shared_model import SharedModel
from cavity.core.types import Leaf
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.hierarchical import Hierarchical
from cavity.distributions.pseudo import Kernel, Observations, PseudoObservations
from cavity.errors import CavityError, DataError
from cavity.likelihoods import GaussianNoise
from cavity.likelihoods.gaussian import known_noise
from cavity.models.function_prediction import DRAWS, FunctionPrediction
from cavity.models.gp.factor_forms import Decoupled, FactorForm, FactorProblem
from cavity.models.gp.inducing import NATURAL_RATE, Inducing, Values, expected_log_prob

JITTER = 1e-6


class SparseGP(SharedModel[Hierarchical, Observations], PredictiveModel, ReportedModel):
    """The model. Build it with `sparse_gp`.

    Attributes:
        prior: over phi, and no observations.
        kernel: where its hyperparameters start, or stay.
        likelihood: likewise.
        inducing: where the inducing inputs start, or stay.
        form: of a client's factor.
        features: names of the inputs.
        learns_inducing: whether the inducing inputs are part of phi.
        learns_hyperparameters: whether the hyperparameters are.
        follows_noise: whether S is a multiple of the noise's variance, where there is noise.
        jitter: on the diagonal of K_ZZ, relative to its mean.
    """

    prior: Hierarchical
    kernel: Kernel
    likelihood: Likelihood
    inducing: Float[Array, "m d"]
    form: FactorForm
    features: tuple[str, ...] = eqx.field(static=True)
    learns_inducing: bool = eqx.field(static=True)
    learns_hyperparameters: bool = eqx.field(static=True)
    follows_noise: bool = eqx.field(static=True)
    jitter: Float[Array, ""]

    @property
    def _hyperparameters(self) -> PyTree:
        return self.kernel, self.likelihood

    @property
    def start(self) -> Float[Array, " d"]:
        inducing = self.inducing.ravel() if self.learns_inducing else jnp.zeros(0)
        logs = jnp.log(ravel_pytree(self._hyperparameters)[0]) if self.learns_hyperparameters else jnp.zeros(0)
        return jnp.concatenate([inducing, logs])

    @property
    def is_auxiliary(self) -> Bool[Array, " d"]:
        return jnp.arange(self.prior.shared.dimension) < self._num_auxiliary

    @property
    def _num_auxiliary(self) -> int:
        return self.inducing.size if self.learns_inducing else 0

    def at(self, phi: Float[Array, " d"]) -> tuple[Inducing, Likelihood]:
        """The inducing inputs, the kernel and the likelihood that phi stands for."""
        inducing, (kernel, likelihood) = self.inducing, self._hyperparameters
        if self.learns_inducing:
            inducing = phi[: self._num_auxiliary].reshape(inducing.shape)
        if self.learns_hyperparameters:
            kernel, likelihood = ravel_pytree(self._hyperparameters)[1](jnp.exp(phi[self._num_auxiliary :]))
        return Inducing.at(kernel, inducing.astype(phi.dtype), self.jitter, self._unit(likelihood)), likelihood

    def _unit(self, likelihood: Likelihood) -> Number:
        return likelihood.noise_precision if self.follows_noise and isinstance(likelihood, Noisy) else 1.0

    def no_factor(self) -> Observations:
        return self.form.none(len(self.inducing), len(self.features), groups=1)

    def coordinates(self, conditional: Observations, data: Data) -> PyTree:
        return self.form.start(conditional, self.likelihood, self._unit(self.likelihood), data)

    def conditional(self, coordinates: PyTree) -> Observations:
        return self.form.factor(coordinates)

    def bound(
        self, phi: Float[Array, " d"], cavity: Observations, conditional: Observations, data: Data
    ) -> Float[Array, ""]:
        inducing, likelihood, others, values = self._values(phi, cavity, conditional)
        return _expected_fit(inducing, likelihood, values, data) - values.kl(others)

    def _values(
        self, phi: Float[Array, " d"], cavity: Observations, conditional: Observations
    ) -> tuple[Inducing, Likelihood, Values, Values]:
        """Inducing inputs and likelihood at phi; q(u) of the cavity, and with the client's factor."""
        inducing, likelihood = self.at(phi)
        others = inducing.values(cavity)
        return inducing, likelihood, others, inducing.with_factor(others, conditional)

    @property
    def has_surrogate_factors(self) -> bool:
        return self.form.is_surrogate

    def whole(
        self, phi: Float[Array, " d"], cavity: PseudoObservations, conditional: PseudoObservations, data: Data
    ) -> Float[Array, ""]:
        inducing, likelihood, others, values = self._values(phi, cavity, conditional)
        # E[log p(y_k | f)] + sum over the others of E[log t_j] - KL(q(u) : p(u)): the cavity keeps its normaliser
        prior_precision = jnp.eye(len(inducing.root), dtype=phi.dtype)
        known = others.log_partition + inducing.beyond(cavity, others.precision - prior_precision)
        return _expected_fit(inducing, likelihood, values, data) - values.kl(others) + known

    def surrogate_residual(
        self, phi: Float[Array, " d"], cavity: PseudoObservations, conditional: PseudoObservations, data: Data
    ) -> Float[Array, ""]:
        inducing, likelihood, others, values = self._values(phi, cavity, conditional)
        # E[log p(y_k | f)] - E[log t_k]
        represented = values.expected_factor(others) + inducing.beyond(conditional, values.precision - others.precision)
        return _expected_fit(inducing, likelihood, values, data) - represented

    def moved(
        self, phi: Float[Array, " d"], before: Observations, cavity: Observations, conditional: Observations
    ) -> Float[Array, ""]:
        inducing, _ = self.at(phi)
        return inducing.with_factor(inducing.values(cavity), conditional).kl(inducing.values(before))

    def improved(
        self, phi: Float[Array, " d"], cavity: Observations, coordinates: PyTree, data: Data, rate: Float[Array, ""]
    ) -> PyTree:
        inducing, likelihood = self.at(phi)
        if known_noise(likelihood) is None:
            # a full first step would overshoot, and later small steps would correct this slowly
            rate = jnp.full_like(rate, NATURAL_RATE)
        return self.form.improved(FactorProblem(inducing, cavity, likelihood, data), coordinates, rate)

    @property
    def improves_on_all_rows(self) -> bool:
        return self.form.needs_all_rows

    def remark_on(self, conditional: Observations, data: Data) -> str | None:
        x, y = (np.asarray(column)[: int(data.num_rows)] for column in data.batch)
        return self.form.remark_on(conditional, x, y)

    def prepare(self, batch: PyTree) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.rows(batch)
        if problem := self.form.check(len(x)):
            raise DataError(problem)
        return x, y

    def rows(self, batch: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and outcomes, of however many rows."""
        inputs, outcomes = pair(batch, "a Gaussian process needs a pair (x, y)")
        x, y = same_rows(numeric_matrix(inputs, self.features), numeric_vector(outcomes))
        if problem := self.likelihood.check(y):
            raise DataError(problem)
        return x, y

    def predict(
        self, posterior: Hierarchical, x: PyTree, *, key: PRNGKeyArray, num_draws: int | None = None
    ) -> FunctionPrediction:
        rows = jnp.asarray(numeric_matrix(x, self.features))
        return _predict(self, posterior, rows, key, DRAWS if num_draws is None else int(num_draws))

    def inducing_inputs(self, posterior: Hierarchical) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every inducing input [m, d]."""
        if not self.learns_inducing:
            return np.asarray(self.inducing), np.zeros(self.inducing.shape)
        shared, shape = posterior.shared, self.inducing.shape
        mean, variance = (np.asarray(part)[: self._num_auxiliary] for part in (shared.mean, shared.variance))
        return mean.reshape(shape), np.sqrt(variance).reshape(shape)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        from cavity.models.gp.kernels import positive_leaves

        if not self.learns_hyperparameters:
            return ()
        names = positive_leaves(self.kernel, "kernel") + positive_leaves(self.likelihood, "likelihood")
        return tuple(f"log {name}" for name in names)

    def reported(self, q: Hierarchical) -> DiagonalGaussian:
        first = self._num_auxiliary
        return DiagonalGaussian(q.shared.precision_mean[first:], q.shared.precision[first:])

    def reported_moments(self, q: Hierarchical) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        reported = self.reported(q)
        return np.asarray(reported.mean), np.asarray(reported.covariance)

    @property
    def remarks(self) -> tuple[str, ...]:
        return (
            f"{len(self.inducing)} inducing inputs; {float(self.jitter):.0e} of the mean variance is added to K_ZZ",
        )


@eqx.filter_jit
def _predict(
    model: SparseGP, posterior: Hierarchical, x: Float[Array, "n d"], key: PRNGKeyArray, num_draws: int
) -> FunctionPrediction:
    posterior = jax.tree.map(jnp.asarray, posterior)
    factor = posterior.conditional
    assert factor is not None

    def one(phi: Float[Array, " d"]) -> tuple[Array, Array, Likelihood]:
        inducing, likelihood = model.at(phi)
        mean, variance = inducing.marginals(inducing.values(factor), x)
        return mean, variance, likelihood

    draws = posterior.shared.sample(key, (num_draws,))
    return FunctionPrediction(*jax.lax.map(one, draws))


def _expected_fit(inducing: Inducing, likelihood: Likelihood, values: Values, data: Data) -> Float[Array, ""]:
    """E[log p(y_k | f)]."""
    x, y = data.batch
    mean, variance = inducing.marginals(values, x)
    return jnp.asarray(data.weight) @ expected_log_prob(likelihood, mean, variance, y)


def sparse_gp(
    features: int | Sequence[str],
    *,
    kernel: Kernel | None = None,
    likelihood: Likelihood | None = None,
    num_inducing: int = 100,
    inducing: Float[Leaf, "m d"] | None = None,
    form: FactorForm | None = None,
    learns_inducing: bool = True,
    learns_hyperparameters: bool = True,
    inducing_prior: tuple[Number, Number] = (0.0, 1.0),
    hyperparameter_prior: tuple[Number, Number] = (0.0, 1.0),
    follows_noise: bool = True,
    jitter: float = JITTER,
    seed: int = 0,
) -> SparseGP:
    """A sparse Gaussian process, for `HierarchicalPVI`.

    Args:
        features: names of the inputs, or how many there are. Inputs should be standardised.
        kernel: of tinygp or `cavity.models.gp.kernels`; None is squared exponential. Its numbers are where
            hyperparameters start.
        likelihood: None is `GaussianNoise(0.3)`, its number likewise a start.
        num_inducing: M.
        inducing: where they start, or stay [M, D]; None draws them from their prior.
        form: of a client's factor; None is `Decoupled()`.
        learns_inducing: False keeps them where they are.
        learns_hyperparameters: False keeps kernel and likelihood as they are.
        inducing_prior: mean and standard deviation of each inducing input.
        hyperparameter_prior: those of the log of each hyperparameter.
        follows_noise: S is a multiple of the noise's variance (`models/inducing.py` says why); False is the paper's.
        jitter: on the diagonal of K_ZZ, relative to its mean.
        seed: of the first inducing inputs.

    Data are pairs (x, y).
    """
    from cavity.models.gp.kernels import positive_leaves, squared_exponential

    names = feature_names(features)
    if not names:
        raise CavityError("a Gaussian process needs at least one input")
    require(jitter, lambda jitter: jitter >= 0, "the jitter must not be negative")
    covariance = squared_exponential(len(names)) if kernel is None else kernel
    likelihood = GaussianNoise(0.3) if likelihood is None else likelihood
    # as floats, so that a hyperparameter given as a whole number can be learned
    covariance = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), covariance)
    if likelihood.num_predictors != 1:
        raise CavityError(f"a Gaussian process is one function, and {type(likelihood).__name__} needs several")
    num_numbers = len(positive_leaves(covariance, "kernel")) + len(positive_leaves(likelihood, "likelihood"))
    mean, sd = inducing_prior
    if inducing is None:
        inducing = mean + sd * np.random.default_rng(seed).standard_normal((num_inducing, len(names)))
    inducing = jnp.asarray(inducing, float)
    if inducing.ndim != 2 or inducing.shape[1] != len(names):
        raise CavityError(f"inducing inputs have the shape {inducing.shape}; there are {len(names)} inputs")
    form = Decoupled() if form is None else form
    blocks = []
    for learned, size, (mean, sd) in (
        (learns_inducing, inducing.shape, inducing_prior),
        (learns_hyperparameters, (num_numbers,), hyperparameter_prior),
    ):
        wide = [jnp.broadcast_to(jnp.asarray(number, float), size).ravel() for number in (mean, sd)]
        blocks.append(wide if learned else [jnp.zeros(0), jnp.zeros(0)])
    means, sds = (jnp.concatenate(parts) for parts in zip(*blocks, strict=True))
    prior = Hierarchical(DiagonalGaussian.from_moments(means, sds**2), form.none(len(inducing), len(names), groups=0))
    return SparseGP(
        prior=prior,
        kernel=covariance,
        likelihood=likelihood,
        inducing=inducing,
        form=form,
        features=names,
        learns_inducing=learns_inducing,
        learns_hyperparameters=learns_hyperparameters,
        follows_noise=follows_noise,
        jitter=jnp.asarray(jitter, float),
    )
