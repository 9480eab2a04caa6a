"""One exchange of a method with a factor per client: what PVI and its generalisations share.

    cavity = posterior / factor
    tilted = argmin over q of E_q[loss on my data] + divergence(q : cavity)
    delta  = tilted / posterior
    factor = factor * delta ** exponent

What is taken out may be something else than the factor; `taken_out` has the choices.

Some losses and divergences need a proper cavity: a bounded loss cannot hold q against an improper one, score matching
looks at its mean, the reverse KL divergence is infinite. There only so much of the own factor is taken out as leaves
the cavity half of the prior's precision, and delta = tilted / cavity / factor, which is the same where all of it is
taken out. A cavity among factors of non-negative precision has at least the prior's and is never touched by this; fixed
points whose cavities have half of it are not moved.

The prior may be improper (`prior ** 0` is flat), with a solver that starts anywhere. Before the first round the
posterior is then improper too, and the residual of whoever answers it infinite.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from cavity.algorithms.cavities import OwnFactor, Removal
from cavity.core import (
    Data,
    Divergence,
    EntryAlgorithm,
    Loss,
    Model,
    MultipleOfKL,
    Problem,
    ReportedModel,
    Solution,
    Solver,
)
from cavity.core.messages import ClientInput, ClientUpdate, Report
from cavity.errors import UnsuitableError

KEPT = 0.5  # of the prior's precision, at least, by a cavity that must be proper
HALVINGS_OF_TILTED = 3  # more than rounding can make necessary


def is_improper(prior: Any) -> bool:
    """Whether the prior is known to be improper; a traced one is not looked at."""
    proper = prior.is_proper
    return not isinstance(proper, Tracer) and not proper


def check_parts(model: Model, loss: Loss, divergence: Divergence, solver: Solver) -> None:
    """Raise UnsuitableError unless the parts go together, from this prior on."""
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


class FactorAlgorithm(EntryAlgorithm):
    """Both halves but the server's product, which is left to the method."""

    loss: eqx.AbstractVar[Loss]
    divergence: eqx.AbstractVar[Divergence]
    removed: eqx.AbstractVar[Removal]

    @property
    @abc.abstractmethod
    def is_product(self) -> bool:
        """Whether the posterior is the prior times the factors."""

    @property
    def prior(self) -> Any:
        return self.model.prior

    @property
    def owned(self) -> frozenset[str]:
        return frozenset(self.model.server_entries())

    def initial_entry(self) -> Any:
        return self.prior**0.0  # t_m = 1

    def initial_local(self, data: Data) -> PyTree:
        return None

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Problem:
        cavity = self._cavity(inputs, data)
        loss, rows = self.removed.loss(self.loss, data).in_context(self.model, cavity, data)
        return Problem(self.model, loss, self.divergence, cavity, inputs.posterior, rows)

    @property
    def halvings_alone(self) -> int:
        """Posterior times delta is the tilted distribution, which is proper but for rounding: hardly any."""
        plain = isinstance(self.removed, OwnFactor) and not self._keeps_cavity_proper
        return HALVINGS_OF_TILTED if plain else super().halvings_alone

    @property
    def _keeps_cavity_proper(self) -> bool:
        return self.loss.needs_proper_cavity or self.divergence.needs_proper_cavity

    def _cavity(self, inputs: ClientInput, data: Data) -> Any:
        if self._keeps_cavity_proper:
            return inputs.posterior.without(inputs.entry, self.prior**KEPT)
        return self.removed.cavity(inputs, self.prior, data)

    def update(
        self, inputs: ClientInput, local: PyTree, problem: Problem, solution: Solution
    ) -> tuple[ClientUpdate, PyTree]:
        if self._keeps_cavity_proper:
            delta = solution.tilted / problem.cavity / inputs.entry
        else:
            delta = self.removed.delta(inputs, problem.cavity, solution.tilted)
        report = Report(
            gap=jnp.where(inputs.posterior.is_proper, solution.tilted.kl(inputs.posterior), jnp.inf),
            free_energy=self._free_energy(inputs, problem, solution),
            steps=solution.steps,
            converged=solution.converged,
        )
        return ClientUpdate(delta, report), local

    def _free_energy(self, inputs: ClientInput, problem: Problem, solution: Solution) -> Float[Array, ""]:
        """E_q[-loss / weight - log factor] at the posterior received; NaN where the sum of these is not maximised."""
        divergence, expected = self.divergence, solution.expected_loss
        if not (self._stands_for_density(problem.loss) and isinstance(divergence, MultipleOfKL)):
            return jnp.full_like(expected, jnp.nan)
        found = -expected / jnp.asarray(divergence.weight, expected.dtype) - inputs.posterior.cross(inputs.entry)
        return found - self.log_units(problem.data)

    def log_units(self, data: Data) -> Any:
        """What the log likelihood of these rows is too large by, where the model computes in units of its own."""
        if not isinstance(self.model, ReportedModel) or self.likelihood_power is None:
            return 0.0
        weight = jnp.asarray(data.weight)
        power = jnp.asarray(self.likelihood_power, weight.dtype)
        return power * self.model.log_outcome_scale * jnp.sum(weight)

    def _stands_for_density(self, seen: Loss) -> bool:
        """Whether a fixed point is the closest member to prior * exp(-sum of losses / weight), in KL(q : . ).

        Not so where a divergence is not a multiple of KL, the posterior not a product, or the loss looks at the cavity,
        so that it is another one when it is `seen` from there.
        """
        return self.is_product and isinstance(self.divergence, MultipleOfKL) and seen is self.loss

    @property
    def likelihood_power(self) -> Any:
        """The posterior stands for prior * likelihood ** power; None where it stands for something else."""
        power, divergence = self.loss.likelihood_power, self.divergence
        if power is None or not (self._stands_for_density(self.loss) and isinstance(divergence, MultipleOfKL)):
            return None
        return power / divergence.weight

    def log_likelihood(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        divergence = self.divergence
        seen, _ = self.loss.in_context(self.model, self.prior, data)
        if not (self._stands_for_density(seen) and isinstance(divergence, MultipleOfKL)):
            raise UnsuitableError(
                f"with {type(self.loss).__name__}, {type(divergence).__name__} and the server's divergence there is no "
                "one density that the posterior stands for, so that it has no importance weights; they are for losses "
                "that do not look at the cavity, multiples of KL at the clients and KL at the server"
            )
        loss = self.loss.total(self.model, theta, data)
        return -loss / jnp.asarray(divergence.weight, loss.dtype) - self.log_units(data)

    def merge(self, row: Any, delta: Any, exponent: Any) -> Any:
        return row * delta**exponent
