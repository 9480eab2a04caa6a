"""`cavity reproduce sgp-synthetic`: five clients on intervals (figures 1 and 2 of the paper).

Hyperparameters are those that the data were drawn with, as in the paper; inducing inputs are learned. PVI keeps a
distribution over them, with 500 steps per visit. The baseline averages them (Algorithm 1): 500 steps on a factor alone,
then J = 1000 on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from cavity.algorithms.hierarchical import HierarchicalPVI
from cavity.algorithms.inducing_average import InducingAverage
from cavity.fit.run import run
from cavity.likelihoods import GaussianNoise
from cavity.models.gp.factor_forms import Decoupled
from cavity.models.gp.kernels import squared_exponential
from cavity.models.gp.pooled_gp import central_gp
from cavity.models.gp.sparse_gp import SparseGP, sparse_gp
from cavity.reporting import plots
from cavity.schedules import Sequential
from cavity.solvers.annealed import annealed_adam
from cavity.solvers.shared_descent import SharedDescent
from cavity_experiments import gp_data
from cavity_experiments.runner import Journal, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PVI, AVERAGED, POOLED = METHODS = ("PVI", "averaging", "pooled")
PROBABILITIES = (0.025, 0.25, 0.75, 0.975)
BAR = 0.05
ALPHA = 0.1  # the paper's


def sgp_synthetic(journal: Journal, size: Size, seed: int) -> None:
    """Test log likelihood by visit, and the picture."""
    num_inducing, steps, passes, seeds = {
        Size.QUICK: (15, 50, 1, 1),
        Size.DEFAULT: (40, 500, 4, 1),
        Size.FULL: (40, 500, 4, 5),
    }[size]
    journal.settings(
        num_inducing=num_inducing, steps=steps, averaging_steps=2 * steps, visits=5 * passes, alpha=ALPHA, seeds=seeds
    )
    for draw in range(seed, seed + seeds):
        found = compare(journal, draw, num_inducing, steps, passes)
        label = "" if draw == seed else f" (data {draw})"
        gap, judged = found[PVI] - found[POOLED], size is not Size.QUICK
        name = f"sgp-4a PVI - pooled after {5 * passes} visits, nats per point{label}"
        journal.check(name, gap, f">= -{BAR}", gap >= -BAR if judged else None)
        name = f"sgp-4b averaging - PVI, nats per point: it drifts{label}"
        lost = found[AVERAGED] - found[PVI]
        journal.check(name, lost, f"< -{BAR}", lost < -BAR if judged else None)


def model_for(num_inducing: int, seed: int) -> SparseGP:
    """The true hyperparameters, which stay; inducing inputs that start at random."""
    return sparse_gp(
        1,
        kernel=squared_exponential(1, gp_data.LENGTH_SCALE, gp_data.SCALE),
        likelihood=GaussianNoise(gp_data.NOISE_SD),
        num_inducing=num_inducing,
        form=Decoupled(16),
        learns_hyperparameters=False,
        seed=seed,
    )


def compare(journal: Journal, seed: int, num_inducing: int, steps: int, passes: int) -> dict[str, float]:
    """The last score of each method; all of them, and the picture, go into the journal."""
    data, model = gp_data.synthetic_1d(seed), model_for(num_inducing, seed)
    x, y = (np.concatenate([rows[i] for rows in data.clients.values()]) for i in range(2))
    posteriors: dict[str, Any] = {POOLED: central_gp(model, x, y)[0]}
    found = {}

    def on_pass(method: str, visits: int, posterior: Any) -> None:
        each = predict(model, posterior, data.test[0]).log_prob(data.test[1])
        found[method] = float(each.mean())
        inducing = model.inducing_inputs(posterior)[0][:, 0]
        outside = int(np.sum(np.abs(inducing) > np.abs(x).max() + gp_data.LENGTH_SCALE))
        journal.row(
            "visits",
            seed=seed,
            method=method,
            visits=visits,
            log_likelihood=found[method],
            between=float(each[data.between].mean()),
            inside=float(each[~data.between].mean()),
            inducing_outside=outside,
        )
        journal.say(
            f"{method}, {visits} visits: {found[method]:.3f} nats per point, {outside} inducing inputs off the data"
        )

    on_pass(POOLED, 0, posteriors[POOLED])
    methods = {
        PVI: HierarchicalPVI(model, alpha=ALPHA, solver=SharedDescent(annealed_adam(steps), num_steps=steps)),
        AVERAGED: InducingAverage(
            model, len(y), solver=SharedDescent(optax.adam, num_steps=3 * steps, point=True, still_steps=steps)
        ),
    }
    for name, method in methods.items():
        fit = run(
            method,
            data.clients,
            schedule=Sequential(),
            rounds=passes,
            tolerance=0.0,
            seed=seed,
            observers=[lambda record, server, name=name: on_pass(name, record["communications"], server.posterior)],
        )
        posteriors[name] = fit.posterior
    journal.figure(f"bands_{seed}", lambda: draw(model, posteriors, data))
    return found


def predict(model: SparseGP, posterior: Any, x: np.ndarray) -> Any:
    """By a hundred draws, as in the paper."""
    return model.predict(posterior, x, key=jax.random.key(0), num_draws=100)


def draw(model: SparseGP, posteriors: dict[str, Any], data: gp_data.Synthetic) -> Figure:
    """Figure 1: the bands of each method, the clients in colours, the inducing inputs below."""
    predictions, inducing = {}, {}
    for name in METHODS:
        found = predict(model, posteriors[name], data.test[0])
        predictions[name] = (np.asarray(found.mean), np.asarray(found.quantile(np.array(PROBABILITIES))))
        mean, sd = model.inducing_inputs(posteriors[name])
        inducing[name] = (mean[:, 0], sd[:, 0])
    clients = {name: (x[:, 0], y) for name, (x, y) in data.clients.items()}
    return plots.bands(
        data.test[0][:, 0], predictions, clients, probabilities=PROBABILITIES, inducing=inducing, truth=data.function
    )
