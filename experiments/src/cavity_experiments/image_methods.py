"""What section 5.3 of the PVI paper compares on images, each method a choice of parts (docs/methods.md).

The local solver is gradient descent with steps that decrease to zero. If clients have many rows it is Adam. With a
hundred clients of two digits each it is the natural gradient: Adam moves every weight by about its step size, even if
the gradient is small, and with a hundred sequential clients it diverged after ten passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from cavity.aggregation import Fixed
from cavity.algorithms import PVI
from cavity.algorithms.cavities import AllButShare, Nothing, Removal
from cavity.core import Schedule
from cavity.distributions.mean_scale import MeanScale
from cavity.fit.run import Fit, run
from cavity.models import MLP
from cavity.schedules import Sequential, SequentialShuffled, Synchronous
from cavity.solvers import Gradient
from cavity.solvers.plateau import Plateau
from cavity.solvers.start import Tight
from cavity.training import Observer
from cavity_experiments import images
from cavity_experiments.images import Images
from cavity_experiments.schemes import counting_steps

LONGEST_MEAN, LONGEST_SCALE = 0.3, 0.1  # of one natural step: in standard deviations, in the log of one
LAST_EXPONENT = 0.2  # of the damped passes
WINDOW, PATIENCE = 23, 5  # of early stopping: an epoch of 6,000 rows; the patience is that of the authors' program


@cache
def natural(num_steps: int) -> Callable[[Any], optax.GradientTransformation]:
    """The natural gradient in means and log scales, in steps of a bounded length that fall to nothing.

    The Fisher information of N(mu, s^2) is 1 / s^2 for mu and 2 for log s, so that

        mu <- mu - rho s^2 d/dmu,    log s <- log s - rho / 2 d/dlog s
    """

    def optimiser(step_size: Any) -> optax.GradientTransformation:
        rho = optax.cosine_decay_schedule(step_size, num_steps)
        return optax.chain(optax.scale_by_schedule(rho), optax.stateless(_natural_step))

    return optimiser


def _natural_step(gradient: Any, q: Any) -> PyTree:
    sd = jnp.exp(q.log_scale)
    mean = jnp.clip(-sd * gradient.mean, -LONGEST_MEAN, LONGEST_MEAN)
    return MeanScale(sd * mean, jnp.clip(-gradient.log_scale / 2, -LONGEST_SCALE, LONGEST_SCALE))


@dataclass(frozen=True)
class Setting:
    """How the clients of a split are fitted.

    Attributes:
        num_clients: M.
        passes: over all clients; as many rounds where they are synchronous, and as many solves of pooled VI.
        num_steps: per visit; pooled VI takes M times as many in a solve.
        one_pass_steps: per visit of BCM and VCL, which have no second one.
        step_size: of Adam, for means; of the natural gradient, where clients have two digits each.
        batch_size: rows per step.
        synchronous_damping: the paper's exponent for synchronous PVI.
        prior_scale: of every weight.
        two_digits: at each client; then PVI's first pass is a synchronous round, and the others are in random order.
        damped_passes: the last of PVI's passes, in which what clients do to the posterior in turn is averaged out.
        early_stopping: stop solves on the expected log likelihood, and start every one of them tight.
    """

    num_clients: int
    passes: int
    num_steps: int
    one_pass_steps: int
    step_size: float
    batch_size: int
    synchronous_damping: float
    prior_scale: float = images.PRIOR_SCALE
    two_digits: bool = False
    damped_passes: int = 0
    early_stopping: bool = False

    def solver(self, num_steps: int) -> Gradient:
        """At most so many steps."""
        optimiser = natural if self.two_digits else images.annealed
        plateau = Plateau(WINDOW, PATIENCE, expected_loss_only=True) if self.early_stopping else None
        return Gradient(
            optimiser(num_steps),
            self.step_size,
            num_steps,
            batch_size=self.batch_size,
            plateau=plateau,
            start=Tight(images.TIGHT, images.JITTER, first_only=not self.early_stopping),
        )


@dataclass(frozen=True)
class Task:
    """One fit, for the methods below.

    Attributes:
        setting: how.
        model: of which all share the prior.
        clients: name -> images and digits.
        seed: random seed.
        scores: name -> function of a posterior.
        observer: called after each round.
    """

    setting: Setting
    model: MLP
    clients: Mapping[str, Images]
    seed: int
    scores: Mapping[str, Callable[[Any], float]]
    observer: Observer

    def method(self, exponent: float = 1.0, removed: Removal | None = None, num_steps: int | None = None) -> PVI:
        """PVI with the setting's solver, undamped by default."""
        solver = self.setting.solver(self.setting.num_steps if num_steps is None else num_steps)
        return PVI(self.model, solver=solver, damping=Fixed(exponent), removed=removed)

    def run(self, method: PVI, schedule: Schedule, rounds: int, clients: Mapping[str, Images] | None = None) -> Fit:
        """From the prior. Clients keep their factors, so that a visit does not cost a product over all of them."""
        return run(
            method,
            self.clients if clients is None else clients,
            schedule=schedule,
            rounds=rounds,
            tolerance=0.0,
            seed=self.seed,
            factors="clients",
            metrics=self.scores,
            observers=[counting_steps(schedule), self.observer],
        )

    def continue_run(self, fit: Fit, method: PVI, schedule: Schedule, rounds: int) -> Fit:
        """From where a fit ended, by another method."""
        server = replace(fit.server, schedule=schedule.init(fit.server.names))
        observers = [counting_steps(schedule, fit.history[-1]["gradient_steps"]), self.observer]
        fit = replace(fit, algorithm=method, schedule=schedule, server=server)
        return fit.refine(rounds, 0.0, metrics=self.scores, observers=observers)


def _pvi(task: Task) -> Fit:
    setting, in_turn = task.setting, SequentialShuffled()
    if not setting.two_digits:
        return task.run(task.method(), Sequential(), setting.passes)
    fit = task.run(task.method(1 / setting.num_clients), Synchronous(), 1)
    fit = task.continue_run(fit, task.method(), in_turn, setting.passes - setting.damped_passes - 1)
    if setting.damped_passes == 0:
        return fit
    return task.continue_run(fit, task.method(LAST_EXPONENT), in_turn, setting.damped_passes)


def _synchronous(task: Task) -> Fit:
    return task.run(task.method(task.setting.synchronous_damping), Synchronous(), task.setting.passes)


def _pooled(task: Task) -> Fit:
    x, y = (np.concatenate(columns) for columns in zip(*task.clients.values(), strict=True))
    method = task.method(num_steps=task.setting.num_clients * task.setting.num_steps)
    return task.run(method, Synchronous(), task.setting.passes, {"pooled": (x, y)})


def _committee(task: Task) -> Fit:
    return task.run(task.method(num_steps=task.setting.one_pass_steps), Synchronous(), 1)


def _committee_of_shares(task: Task) -> Fit:
    num_rows = sum(len(y) for _, y in task.clients.values())
    method = task.method(removed=AllButShare(num_rows), num_steps=task.setting.one_pass_steps)
    return task.run(method, Synchronous(), 1)


def _continual(task: Task) -> Fit:
    return task.run(task.method(num_steps=task.setting.one_pass_steps), Sequential(), 1)


def _streaming(task: Task) -> Fit:
    return task.run(task.method(removed=Nothing()), Sequential(), task.setting.passes)


METHODS: dict[str, Callable[[Task], Fit]] = {
    "PVI": _pvi, "pooled VI": _pooled, "VCL": _continual, "BCM (same)": _committee, "PVI, synchronous": _synchronous,
    "streaming VB": _streaming, "BCM (split)": _committee_of_shares,
}  # fmt: skip
