"""The forms that a client's factor over a Gaussian process may take, where each starts, and how it is improved.

| form | factor | found by |
| --- | --- | --- |
| `Decoupled(k)` | k pseudo-observations with a noise each (DPO) | gradients |
| `Decoupled(k, full=True)` | with noise of any covariance | closed form, at inputs that stay |
| `OwnRows(k)` | pseudo-observations at the rows themselves: exact, but discloses their inputs | closed form |
| `Coupled()` | N(u; m, S), whatever Z is (CPO) | closed form |

In closed form, given Z and hyperparameters, the rows' own sites (`inducing.sites`) sum to P = A' diag(lambda) A and
g = A' h, with A their features; the factor with this P and g is then the solution of a linear problem. A step moves a
share of the way to it: this is natural gradient ascent, which for a Gaussian likelihood and fixed Z converges in one
step.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PyTree

from cavity.core import Data, Likelihood
from cavity.core.fields import Number
from cavity.distributions.pseudo import RIDGE, CoupledObservations, Observations, PseudoObservations
from cavity.errors import CavityError
from cavity.models.gp.inducing import NATURAL_RATE, Inducing, sites
from cavity.models.gp.row_proximity import row_proximity

LEAST_PRECISION = 1e-3  # of a pseudo-observation at the start
TWIN = 1e-10  # the squared distance below which two rows have the same inputs
FIRST_STEPS = 50  # to the sites that a factor starts with


class FactorProblem(eqx.Module):
    """What a client's factor is found from, at given inducing inputs and hyperparameters.

    Attributes:
        inducing: the inducing inputs with their kernel.
        cavity: the other clients' factors.
        likelihood: of the rows.
        data: the client's rows.
    """

    inducing: Inducing
    cavity: Observations
    likelihood: Likelihood
    data: Data

    def sites(self, factor: Observations) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Precision and shift of each row's own site, weighted, at the q(v) of cavity and factor."""
        x, y = self.data.batch
        inducing = self.inducing
        mean, variance = inducing.marginals(inducing.with_factor(inducing.values(self.cavity), factor), x)
        weight = jnp.asarray(self.data.weight) / inducing.unit
        precision, shift = sites(self.likelihood, mean, variance, y)
        return weight * precision, weight * shift

    def target(self, factor: Observations) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
        """(P, g), the sums of the rows' sites."""
        precision, shift = self.sites(factor)
        a = self.inducing.features(self.data.batch[0])
        return a.T @ (precision[:, None] * a), a.T @ shift


class FactorForm(eqx.Module):
    """The form of a client's factor."""

    needs_all_rows: ClassVar[bool] = False  # whether `improved` needs all rows rather than a mini-batch
    is_surrogate: ClassVar[bool] = True  # for its rows, for all inducing inputs and hyperparameters

    @abc.abstractmethod
    def none(self, num_inducing: int, num_inputs: int, groups: int) -> Observations:
        """The unit factor."""

    @abc.abstractmethod
    def start(self, factor: Observations, likelihood: Likelihood, unit: Number, data: Data) -> PyTree:
        """Coordinates of the current factor; for the unit factor, those of a first factor from the rows."""

    @abc.abstractmethod
    def factor(self, coordinates: PyTree) -> Observations:
        """The factor of these coordinates."""

    def check(self, num_rows: int) -> str | None:
        """Why a client with so few rows cannot have such a factor (and the remedy), or None."""
        return None

    def improved(self, problem: FactorProblem, coordinates: PyTree, rate: Number) -> PyTree:
        """The coordinates after a step of this rate to the optimum given Z; unchanged if it has no closed form."""
        return coordinates

    @abc.abstractmethod
    def remark_on(self, factor: Observations, x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"]) -> str | None:
        """What a client should know about its factor before it is sent, given its rows; None where there is nothing."""


class PseudoCoordinates(eqx.Module):
    """What gradients change: V, m and log S^-1. `used` marks the pseudo-observations in use and does not change."""

    inputs: Float[Array, "k d"]
    outcomes: Float[Array, " k"]
    log_precision: Float[Array, " k"]
    used: Float[Array, " k"]


def _with_neighbours(data: Data, num_used: Int[Array, ""], size: int) -> tuple[Array, Array]:
    """Evenly spaced rows, and for each its nearest neighbour with other inputs (itself if there is none)."""
    x = jnp.asarray(data.batch[0])
    chosen = (jnp.arange(size) * data.num_rows // jnp.maximum(num_used, 1)) % data.num_rows
    apart = jnp.sum(x[chosen] ** 2, axis=1)[:, None] + jnp.sum(x**2, axis=1) - 2.0 * x[chosen] @ x.T
    rows = jnp.arange(len(x))
    elsewhere = (rows < data.num_rows) & (rows != chosen[:, None]) & (apart > TWIN)
    apart = jnp.where(elsewhere, apart, jnp.inf)
    nearest = jnp.argmin(apart, axis=1)
    return chosen, jnp.where(jnp.isfinite(jnp.min(apart, axis=1)), nearest, chosen)


class Decoupled(FactorForm):
    """Pseudo-observations {V, m, S}, fewer than rows.

    They start halfway between a row and its nearest neighbour with other inputs, with the mean of both outcomes.

    Attributes:
        size: the maximum number per client.
        share: the maximum number per row.
        full: whether S is a full covariance matrix; V is then fixed at its start.
    """

    size: int = eqx.field(static=True, default=100)
    share: float = eqx.field(static=True, default=0.8)
    full: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.size < 1 or not 0 < self.share < 1:
            raise CavityError(
                f"there must be at least one pseudo-observation and fewer than one per row, not {self.size} and "
                f"{self.share:g} per row; OwnRows(size) takes the rows themselves"
            )

    def check(self, num_rows: int) -> str | None:
        if int(self.share * num_rows) < 1:
            return (
                f"it has {num_rows} row{'' if num_rows == 1 else 's'}, and its pseudo-observations must be at most "
                f"{self.share:g} as many, for they would be its rows otherwise; leave it out, join it with another, or "
                "insist with form=OwnRows(size) or Coupled()"
            )
        return None

    def none(self, num_inducing: int, num_inputs: int, groups: int) -> PseudoObservations:
        return PseudoObservations.none(groups, self.size, num_inputs, full=self.full)

    def start(self, factor: PseudoObservations, likelihood: Likelihood, unit: Number, data: Data) -> PyTree:
        first, there = self._first(likelihood, unit, data), jnp.any(jnp.asarray(factor.precision) != 0)
        if self.full:
            return jax.tree.map(lambda old, new: jnp.where(there, old, new), factor, self._as_full(first))
        shift, precision = jnp.asarray(factor.shift)[0], jnp.asarray(factor.precision)[0]
        used = (precision > 0).astype(precision.dtype)
        known = jnp.where(used > 0, precision, 1.0)
        old = PseudoCoordinates(jnp.asarray(factor.inputs)[0], shift / known, jnp.log(known), used)
        return jax.tree.map(lambda old, new: jnp.where(there, old, new), old, first)

    def _first(self, likelihood: Likelihood, unit: Number, data: Data) -> PseudoCoordinates:
        x, y = (jnp.asarray(leaf) for leaf in data.batch)
        weight = jnp.asarray(data.weight)
        used, num_used = self._used(data)
        chosen, nearest = _with_neighbours(data, num_used.astype(int), self.size)
        precision, shift = _row_by_row(likelihood, y)
        mean_of_both = lambda column: 0.5 * (column[chosen] + column[nearest])  # noqa: E731
        # each represents as many rows as there are per pseudo-observation
        each = jnp.maximum(mean_of_both(precision), LEAST_PRECISION)
        times = jnp.sum(weight) / num_used / unit
        return PseudoCoordinates(mean_of_both(x), mean_of_both(shift) / each, jnp.log(times * each), used)

    def _used(self, data: Data) -> tuple[Float[Array, " k"], Array]:
        """Which pseudo-observations are in use, and how many."""
        num_used = jnp.clip(jnp.floor(self.share * data.num_rows), 1, self.size)
        return (jnp.arange(self.size) < num_used).astype(jnp.asarray(data.batch[0]).dtype), num_used

    def _as_full(self, first: PseudoCoordinates) -> PseudoObservations:
        precision = first.used * jnp.exp(first.log_precision)
        return PseudoObservations(first.inputs[None], (precision * first.outcomes)[None], jnp.diag(precision)[None])

    def factor(self, coordinates: PyTree) -> PseudoObservations:
        if self.full:
            return jax.lax.stop_gradient(coordinates)
        precision = jax.lax.stop_gradient(coordinates.used) * jnp.exp(coordinates.log_precision)
        return PseudoObservations(coordinates.inputs[None], (precision * coordinates.outcomes)[None], precision[None])

    def improved(self, problem: FactorProblem, coordinates: PyTree, rate: Number) -> PyTree:
        if not self.full:
            return coordinates
        inducing, (precision, shift) = problem.inducing, problem.target(coordinates)
        # S^-1 = B' P B and S^-1 m = B' g with B = (A' A)^-1 A', so that A' S^-1 A = P where A has full rank
        a = self._used(problem.data)[0][:, None] * inducing.features(coordinates.inputs[0])
        gram = a.T @ a
        ridge = RIDGE * jnp.trace(gram) * jnp.eye(gram.shape[0], dtype=gram.dtype)
        b = jnp.linalg.solve(gram + ridge, a.T)
        found = PseudoObservations(coordinates.inputs, (b.T @ shift)[None], (b.T @ precision @ b)[None])
        return _on_the_way(coordinates, found, rate)

    def remark_on(self, factor: PseudoObservations, x: np.ndarray, y: np.ndarray) -> str:
        return str(row_proximity(factor, x, y))


class OwnRows(FactorForm):
    """Pseudo-observations at the rows themselves: exact, but every client sees the inputs of all others.

    Attributes:
        size: the maximum number of rows per client.
    """

    needs_all_rows: ClassVar[bool] = True

    size: int = eqx.field(static=True)

    def check(self, num_rows: int) -> str | None:
        return f"it has {num_rows} rows, and OwnRows({self.size}) has room for {self.size}" * (num_rows > self.size)

    def none(self, num_inducing: int, num_inputs: int, groups: int) -> PseudoObservations:
        return PseudoObservations.none(groups, self.size, num_inputs, full=False)

    def start(self, factor: PseudoObservations, likelihood: Likelihood, unit: Number, data: Data) -> PseudoObservations:
        x = jnp.asarray(data.batch[0])
        places = jnp.minimum(jnp.arange(self.size), len(x) - 1)
        return PseudoObservations(x[places][None], factor.shift, factor.precision)

    def factor(self, coordinates: PseudoObservations) -> PseudoObservations:
        return jax.lax.stop_gradient(coordinates)

    def improved(self, problem: FactorProblem, coordinates: PseudoObservations, rate: Number) -> PseudoObservations:
        precision, shift = problem.sites(coordinates)
        room = jnp.arange(self.size) < problem.data.num_rows
        places = jnp.minimum(jnp.arange(self.size), len(shift) - 1)
        found = [jnp.where(room, column[places], 0.0)[None] for column in (shift, precision)]
        return _on_the_way(coordinates, PseudoObservations(coordinates.inputs, *found), rate)

    def remark_on(self, factor: PseudoObservations, x: np.ndarray, y: np.ndarray) -> str:
        return str(row_proximity(factor, x, y))


class Coupled(FactorForm):
    """N(u; m, S): the same for all inducing inputs."""

    is_surrogate: ClassVar[bool] = False

    def none(self, num_inducing: int, num_inputs: int, groups: int) -> CoupledObservations:
        return CoupledObservations.none(num_inducing)

    def start(
        self, factor: CoupledObservations, likelihood: Likelihood, unit: Number, data: Data
    ) -> CoupledObservations:
        return factor

    def factor(self, coordinates: CoupledObservations) -> CoupledObservations:
        return jax.lax.stop_gradient(coordinates)

    def improved(self, problem: FactorProblem, coordinates: CoupledObservations, rate: Number) -> CoupledObservations:
        root, (precision, shift) = problem.inducing.root, problem.target(coordinates)
        # u = L v, so S^-1 = L^-T P L^-1 and S^-1 m = L^-T g
        back = lambda right: solve_triangular(root, right, lower=True, trans=1)  # noqa: E731
        found = CoupledObservations(back(shift), back(back(precision).T))
        return _on_the_way(coordinates, found, rate)

    def remark_on(self, factor: CoupledObservations, x: np.ndarray, y: np.ndarray) -> None:
        return None


def _row_by_row(likelihood: Likelihood, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The sites of independent rows, with the prior f ~ N(0, 1) for each: by damped natural gradient steps."""

    def step(_: int | Array, moments: tuple[Array, Array]) -> tuple[Array, Array]:
        mean, variance = moments
        precision, shift = sites(likelihood, mean, variance, y)
        return mean + NATURAL_RATE * (shift / (1 + precision) - mean), 1 / (1 + precision)

    start = (jnp.zeros_like(y), jnp.ones_like(y))
    mean, variance = jax.lax.fori_loop(0, FIRST_STEPS, step, start)
    return sites(likelihood, mean, variance, y)


def _on_the_way(here: PyTree, there: PyTree, rate: Number) -> PyTree:
    return jax.tree.map(lambda here, there: here + rate * (there - here), here, there)
