"""What the experiments on Gaussian processes compare, each a choice of parts, and how each is scored.

| name | factor | inducing inputs |
| --- | --- | --- |
| DPO | decoupled pseudo-observations, a noise each | learned, as a distribution |
| CPO | coupled: N(u; m, S), full S | learned, as a distribution |
| fixed inputs | as DPO | at their random start |
| pooled | all rows in one place | learned, as points |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cavity.algorithms.hierarchical import HierarchicalPVI
from cavity.core import Likelihood
from cavity.distributions.hierarchical import Hierarchical
from cavity.fit.run import Fit, run
from cavity.models.gp.factor_forms import Coupled, Decoupled, FactorForm
from cavity.models.gp.pooled_gp import central_gp
from cavity.models.gp.sparse_gp import SparseGP, sparse_gp
from cavity.schedules import Sequential
from cavity.solvers.annealed import annealed_adam
from cavity.solvers.shared_descent import SharedDescent

DPO, CPO, FIXED, POOLED = METHODS = ("DPO", "CPO", "fixed inputs", "pooled")
SHARE = 0.8  # pseudo-observations per row, at most

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """How a federation is fitted.

    Attributes:
        num_inducing: M.
        most_pseudo: M_k at most.
        passes: over all clients, one after the other.
        num_steps: per visit.
        step_size: of Adam, decreasing to zero.
        alpha: on the KL of inducing inputs.
        batch_size: rows per step; None takes all.
        central_steps: of the pooled fit.
        num_draws: per prediction.
    """

    num_inducing: int = 100
    most_pseudo: int = 500
    passes: int = 3
    num_steps: int = 300
    step_size: float = 0.03
    alpha: float = 0.01
    batch_size: int | None = None
    central_steps: int = 300
    num_draws: int = 100


def form_of(method: str, clients: Mapping[str, Rows], setting: Setting) -> FactorForm:
    """The form of factors; room for as many pseudo-observations as the largest client may have."""
    if method == CPO:
        return Coupled()
    return Decoupled(min(int(SHARE * max(len(y) for _, y in clients.values())), setting.most_pseudo), SHARE)


def model_of(
    method: str, clients: Mapping[str, Rows], setting: Setting, seed: int, likelihood: Likelihood | None = None
) -> SparseGP:
    """The model as a method sees it; the inducing inputs start at the same random values for all methods."""
    x, _ = next(iter(clients.values()))
    return sparse_gp(
        x.shape[1],
        likelihood=likelihood,
        num_inducing=setting.num_inducing,
        form=form_of(method, clients, setting),
        learns_inducing=method != FIXED,
        seed=seed,
    )


def federated(
    model: SparseGP,
    clients: Mapping[str, Rows],
    setting: Setting,
    seed: int,
    on_pass: Callable[[int, Hierarchical], None] = lambda visits, posterior: None,
) -> Fit:
    """Sequential PVI; `on_pass` is called after each pass with the visits so far and the posterior."""
    solver = SharedDescent(
        annealed_adam(setting.num_steps), setting.step_size, setting.num_steps, batch_size=setting.batch_size
    )
    return run(
        HierarchicalPVI(model, alpha=setting.alpha, solver=solver),
        clients,
        schedule=Sequential(),
        rounds=setting.passes,
        tolerance=0.0,
        seed=seed,
        observers=[lambda record, server: on_pass(record["communications"], server.posterior)],
    )


def pooled(model: SparseGP, clients: Mapping[str, Rows], setting: Setting) -> Hierarchical:
    """The reference: all rows in one place."""
    x, y = (np.concatenate([rows[i] for rows in clients.values()]) for i in range(2))
    return central_gp(model, x, y, num_steps=setting.central_steps)[0]


def score(model: SparseGP, posterior: Hierarchical, test: Rows, setting: Setting) -> dict[str, Any]:
    """Mean log density of the test outcomes, in nats, and the error of the mean, both in standardised units."""
    x, y = test
    found = model.predict(posterior, x, key=jax.random.key(0), num_draws=setting.num_draws)
    return {
        "log_likelihood": float(np.mean(found.log_prob(y))),
        "rmse": float(np.sqrt(np.mean((np.asarray(found.mean) - y) ** 2))),
    }
