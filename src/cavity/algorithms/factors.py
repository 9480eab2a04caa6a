"""Methods with one factor per client: the client's update that PVI and its generalisations share (`FactorClient`).

    cavity = posterior / factor
    tilted = argmin over q of E_q[loss on my data] + divergence(q : cavity)
    delta  = tilted / posterior
    factor = factor * delta ** exponent

A client may also remove something else than its own factor; `cavities` has the choices.

Some losses and divergences need a proper cavity: with a bounded loss and an improper cavity there is no minimiser,
score matching uses the cavity's mean, the reverse KL divergence is infinite. Then only so much of the client's factor
is removed that the cavity keeps half of the prior's precision, and delta = tilted / cavity / factor, which is the same
where all of it is
removed. A cavity among factors of non-negative precision has at least the prior's precision and is never affected;
fixed points whose cavities have half of it are not moved.

Likelihoods that are flat far away (Student's t) have factors of negative precision where a client's rows are on one
side of the fit, and with an improper cavity the local problem has no minimum, though the posterior is a stationary
point of it. There a client removes a power a of its factor and refits it to that power of its likelihood, as in power
EP:

    cavity = posterior / factor ** a
    tilted = argmin over q of a E_q[loss on my data] + KL(q : cavity)
    delta  = (tilted / cavity) ** (1 / a) / factor = (tilted / posterior) ** (1 / a)

The stationary points are the same for every a, and a is the largest of 1, 1/2, 1/4, ... with a proper cavity.

The prior may be improper (`prior ** 0` is flat), with a solver that starts anywhere. Before the first round the
posterior is then improper too, and the gaps of the first updates are infinite.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from cavity.aggregation.entries import EntryConvergence, EntryServer
from cavity.aggregation.propriety import HALVINGS_ALONE, proper_scale
from cavity.algorithms.cavities import Removal
from cavity.core import (
    Algorithm,
    ClientPart,
    Convergence,
    Damping,
    Data,
    Declaration,
    Distribution,
    Divergence,
    Entries,
    Loss,
    Model,
    Problem,
    ServerPart,
    Solution,
    Solver,
)
from cavity.core.fields import Number, is_traced
from cavity.core.messages import ClientInput, ClientUpdate, Report, Stacked
from cavity.core.types import Leaf
from cavity.distributions.natural import product
from cavity.errors import UnsuitableError
from cavity.losses.tempered import Tempered

KEPT = 0.5  # of the prior's precision, at least, by a cavity that must be proper
LARGEST_BOUND = 1e12  # nats, of a free energy that is reported
HALVINGS_OF_POWER = 6  # of the power of a factor that is removed
HALVINGS_OF_TILTED = 3  # more than rounding can make necessary


def is_improper(prior: Distribution) -> bool:
    """Whether the prior is known to be improper; False for a traced prior, whose values are not known."""
    proper = prior.is_proper
    return not is_traced(proper) and not proper


def check_parts(model: Model, loss: Loss, divergence: Divergence, solver: Solver) -> None:
    """Raise UnsuitableError unless the parts can be combined and started at this prior."""
    solver.check(model, loss, divergence)
    if not is_improper(model.prior):
        return
    if not solver.starts_anywhere:
        raise UnsuitableError(
            f"the prior is improper, and {type(solver).__name__} starts from it; give a proper one (very wide, say), "
            "or, where the rows are Gaussian, use Conjugate or MomentMatching"
        )
    if loss.needs_proper_cavity or divergence.needs_proper_cavity:
        raise UnsuitableError(
            f"the prior is improper, and {type(loss).__name__} with {type(divergence).__name__} needs a proper cavity, "
            "which is only sure with a proper prior; give one (a very wide one)"
        )


class Factors(Entries):
    """One factor per client; the posterior is the prior times the factors.

    Attributes:
        prior: whose power 0 is the unit factor.
    """

    prior: Distribution

    def initial(self) -> Distribution:
        return self.prior**0.0  # t_m = 1

    def merge(self, entry: Distribution, delta: Distribution, exponent: float | Leaf) -> Distribution:
        return entry * delta**exponent

    def rebuild(self, prior: Distribution, entries: Sequence[Distribution] | Stacked) -> Distribution:
        return prior * product(entries) if entries else prior


class Density(eqx.Module):
    """Which density the posterior approximates, and by how much a log likelihood in model units is off.

    Attributes:
        model: prior and likelihood.
        loss: of the clients.
        divergence: of the clients.
        is_product: whether the posterior is the prior times the factors.
    """

    model: Model
    loss: Loss
    divergence: Divergence
    is_product: bool = eqx.field(static=True)

    def weight(self, loss: Loss) -> Number | None:
        """The posterior stands for prior * exp(-sum of losses / weight); None where it stands for something else.

        A fixed point is then the closest member to that density, in KL(q : . ). Not so where a divergence is not a
        multiple of KL, the posterior not a product, or the loss looks at the cavity, so that it becomes another one in
        its context: `loss` is the loss as a client sees it.
        """
        plain = self.is_product and loss is self.loss
        return self.divergence.kl_weight if plain else None

    @property
    def likelihood_power(self) -> Number | None:
        """The posterior stands for prior * likelihood ** power; None where it stands for something else."""
        power, weight = self.loss.likelihood_power, self.weight(self.loss)
        return None if power is None or weight is None else power / weight

    def log_units(self, data: Data) -> Float[Array, ""] | float:
        """By how much the log likelihood of these rows is too large, where the model computes in its own units."""
        scale, power = self.model.log_outcome_scale, self.likelihood_power
        if scale is None or power is None:
            return 0.0
        weight = jnp.asarray(data.weight)
        return jnp.asarray(power, weight.dtype) * scale * jnp.sum(weight)


class FactorClient(ClientPart):
    """The client part of PVI and its generalisations.

    Attributes:
        solver: finds the tilted distribution.
        density: model, loss and divergence.
        removed: what is removed from the posterior before the client refits.
    """

    solver: Solver
    density: Density
    removed: Removal

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Problem:
        model, cavity = self.density.model, self._cavity(inputs, data)
        loss, rows = self.removed.loss(self.density.loss, data).in_context(model, cavity, data)
        if self.removes_a_power:
            loss = Tempered(self._power(inputs), loss)
        rows = model.rows_near(inputs.posterior, rows)
        return Problem(model, loss, self.density.divergence, cavity, inputs.posterior, rows)

    @property
    def keeps_cavity_proper(self) -> bool:
        """Whether the loss or the divergence needs a proper cavity, or the likelihood in another method than PVI."""
        density = self.density
        needed = density.loss.needs_proper_cavity or density.divergence.needs_proper_cavity
        return needed or (_is_flat_far_away(density.model) and not self._has_powers)

    @property
    def removes_a_power(self) -> bool:
        """Whether the likelihood needs a proper cavity, and any power of the factor has the same fixed points."""
        return _is_flat_far_away(self.density.model) and self._has_powers and not self.keeps_cavity_proper

    @property
    def _has_powers(self) -> bool:
        return self.removed.is_own_factor and self.density.divergence.kl_weight is not None

    def _power(self, inputs: ClientInput) -> float | Leaf:
        """The power of its factor that a client removes."""
        least = self.density.model.prior**KEPT
        found = proper_scale(lambda a: (inputs.posterior / inputs.entry**a / least).is_proper, HALVINGS_OF_POWER)
        return jnp.asarray(jnp.where(found > 0, found, 2.0**-HALVINGS_OF_POWER))

    def _cavity(self, inputs: ClientInput, data: Data) -> Distribution:
        prior = self.density.model.prior
        if self.keeps_cavity_proper:
            return inputs.posterior.without(inputs.entry, prior**KEPT)
        if self.removes_a_power:
            return inputs.posterior / inputs.entry ** self._power(inputs)
        return self.removed.cavity(inputs, prior, data)

    def update(
        self, inputs: ClientInput, local: PyTree, problem: Problem, solution: Solution
    ) -> tuple[ClientUpdate, PyTree]:
        if self.keeps_cavity_proper:
            delta = solution.tilted / problem.cavity / inputs.entry
        elif self.removes_a_power:
            delta = (solution.tilted / inputs.posterior) ** (1.0 / self._power(inputs))
        else:
            delta = self.removed.delta(inputs, problem.cavity, solution.tilted)
        report = Report(
            gap=jnp.asarray(jnp.where(inputs.posterior.is_proper, solution.tilted.kl(inputs.posterior), jnp.inf)),
            free_energy=self._free_energy(inputs, problem, solution),
            steps=solution.steps,
            converged=solution.converged,
        )
        return ClientUpdate(delta, report), local

    def _free_energy(self, inputs: ClientInput, problem: Problem, solution: Solution) -> Float[Array, ""]:
        """E_q[-loss / weight - log factor] at the posterior received; NaN if the method does not maximise their sum.

        It is NaN too where it is too large to mean anything: under a broad prior the expectation of an exponential, a
        rate or a hazard, may be 1e40 or overflow, and no server would accept the number.
        """
        expected, loss = solution.expected_loss, problem.loss
        if self.removes_a_power and isinstance(loss, Tempered):
            expected, loss = expected / loss.weight.astype(expected.dtype), loss.loss
        weight = self.density.weight(loss)
        if weight is None:
            return jnp.full_like(expected, jnp.nan)
        found = -expected / jnp.asarray(weight, expected.dtype) - inputs.posterior.cross(inputs.entry)
        found = found - self.density.log_units(problem.data)
        return jnp.asarray(jnp.where(jnp.abs(found) <= LARGEST_BOUND, found, jnp.nan))


def _is_flat_far_away(model: Model) -> bool:
    """Whether the log likelihood falls so slowly that a local problem with an improper cavity has no solution."""
    rows = model if model.corrected_prior is None else model.corrected_prior.rows
    predictors = rows.predictor_model
    return predictors is not None and predictors.likelihood.is_flat_far_away


class FactorAlgorithm(Algorithm):
    """A method with one factor per client. The method defines how the server combines prior and factors.

    Attributes:
        model: prior and likelihood; the posterior is of the prior's family.
        solver: finds the tilted distribution.
        damping: the server's choice of exponents.
        loss: what a client minimises in expectation.
        divergence: how far a client may move from its cavity.
        removed: what a client removes from the posterior before it refits.
    """

    model: Model
    solver: Solver
    damping: Damping
    loss: Loss
    divergence: Divergence
    removed: Removal

    @property
    @abc.abstractmethod
    def entries(self) -> Entries:
        """The factors, and the posterior as a function of prior and factors."""

    @property
    def is_product(self) -> bool:
        """Whether the posterior is the prior times the factors."""
        return True

    @property
    def prior(self) -> Distribution:
        return self.model.prior

    @property
    def density(self) -> Density:
        """Which density the posterior approximates."""
        return Density(self.model, self.loss, self.divergence, self.is_product)

    @property
    def client(self) -> ClientPart:
        return self._factor_client

    @property
    def _factor_client(self) -> FactorClient:
        return FactorClient(self.solver, self.density, self.removed)

    @property
    def server(self) -> ServerPart:
        return EntryServer(self.entries, self.damping, self.halvings_alone)

    @property
    def halvings_alone(self) -> int:
        """The maximum number of halvings for a single update.

        Posterior times delta is the tilted distribution, which is proper up to rounding, so hardly any are needed.
        """
        client = self._factor_client
        plain = self.removed.is_own_factor and not client.keeps_cavity_proper and not client.removes_a_power
        return HALVINGS_OF_TILTED if plain else HALVINGS_ALONE

    @property
    def declaration(self) -> Declaration:
        return Declaration(self.prior**0.0)

    @property
    def convergence(self) -> Convergence:
        return EntryConvergence()

    @property
    def likelihood_power(self) -> Number | None:
        """The posterior stands for prior * likelihood ** power; None where it stands for something else."""
        return self.density.likelihood_power

    def log_units(self, data: Data) -> Float[Array, ""] | float:
        """By how much the log likelihood of these rows is too large, where the model computes in its own units."""
        return self.density.log_units(data)

    def log_likelihood(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        seen, _ = self.loss.in_context(self.model, self.prior, data)
        weight = self.density.weight(seen)
        if weight is None:
            raise UnsuitableError(
                f"with {type(self.loss).__name__}, {type(self.divergence).__name__} and the server's divergence there "
                "is no one density that the posterior stands for, so that it has no importance weights; they are for "
                "losses that do not look at the cavity, multiples of KL at the clients and KL at the server"
            )
        loss = self.loss.total(self.model, theta, data)
        return -loss / jnp.asarray(weight, loss.dtype) - self.log_units(data)
