"""FedEP's toy (Guo et al., 2023, section 3.1): two Gaussian clients in the plane; table 4, figures 1 and 4 (left).

A client's likelihood is N(theta; mu_k, Sigma_k), with

    Psi one random matrix of both,   Sigma_k ~ inverse Wishart(Psi, 7),   mu_k ~ N(0, Sigma_k / 0.2)

The family is mean field, the prior flat, tilted moments are exact; the target is the mean of the product of the two
likelihoods. A client has seven rows x ~ N(0, Psi^-1) with outcomes x . mu_k of a regression with unit noise: the
precision of its likelihood, the sum of x x', is Wishart, as it should be.

The paper does not state the distribution of Psi. Here it has eigenvalues in (1, 2), uniformly, as scikit-learn's
`make_spd_matrix` draws it: one of four distributions tried; with two of them FedEP reaches 1e-6 in 100 rounds. The
results with
Psi = A A', A standard normal, are reported too. There FedAvg and FedPA are similar; but if Psi is nearly singular, both
clients are narrow in one direction, and EP is slow.

**Damping.** None is needed. Let P_k = ((a_k, b_k), (b_k, c_k)) be the clients' precisions, and (x_k, y_k) the diagonal
ones of their factors. Moments of cavity times likelihood make them

    x_1 = a_1 - b_1^2 / (c_1 + y_2),   y_1 = c_1 - b_1^2 / (a_1 + x_2),   and so for client 2.

From a flat start they grow, each is bounded by a_k or c_k, and the map is concave: they converge, to its attracting
fixed point, through proper posteriors. The natural means of the factors then follow a linear iteration with the
eigenvalues +- sqrt(r) and +- sqrt(r'),

    r = b_1 b_2 / ((c_1 + y_2) (a_2 + x_1)),   r' = b_1 b_2 / ((a_1 + x_2) (c_2 + y_1)),

and r^2, the slope of the precisions' own iteration at its attracting fixed point, is below 1. So undamped synchronous
EP converges for every pair of clients, and where r > 0 no fixed damping is faster, for 1 - d + d sqrt(r) >= sqrt(r). At
the fixed point both tilted means are the posterior's, which makes it that of the product.

The scaled identity has n_k c I as the factor's precision, with c = 1: the largest precision that a row has on average
in any direction, and near the best of a scan on other draws (`solvers.moment_matching` says where that is). FedAvg is
its first round: clients of equal precision are averaged. FedPA is the first round of FedEP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.aggregation import Fixed
from cavity.algorithms import PVI
from cavity.algorithms.cavities import WholePosterior
from cavity.core import BlockState, Data
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.models import linear_regression
from cavity.reporting.plots.style import GUIDE, axes_or_new, colour, figure_of, marker
from cavity.simulation.block import BlockInputs, Federation, run_block
from cavity.solvers import MomentMatching
from cavity_experiments.runner import Journal, Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_ROUNDS, DEGREES, LAMBDA, PRECISION_PER_ROW = 100, 7, 0.2, 1.0
FEDAVG, FEDPA, FEDEP, IDENTITY, FULL = "FedAvg", "FedPA", "FedEP", "FedEP, scaled identity", "FedEP, full covariance"
PAPER = {FEDAVG: (5.4e-1, 4.7e-1), FEDPA: (2.6e-1, 2.6e-1), FEDEP: (1.1e-7, 9.8e-8)}  # mean and sd of 200 draws
ROUNDS_OF = {FEDAVG: 1, FEDPA: 1, FEDEP: NUM_ROUNDS, IDENTITY: NUM_ROUNDS, FULL: 1}
Scale = Callable[[np.random.Generator], np.ndarray]


def fedep_toy(journal: Journal, size: Size, seed: int) -> None:
    """All methods on all draws, for two ways to draw Psi; the pictures."""
    num_draws = {Size.QUICK: 50, Size.DEFAULT: 200, Size.FULL: 2000}[size]
    journal.settings(
        draws=num_draws,
        clients=f"two, N(mu, Sigma / {LAMBDA}), Sigma ~ inverse Wishart(Psi, {DEGREES})",
        rounds=f"{NUM_ROUNDS}, synchronous, undamped, from a flat prior",
        identity=f"precision of a factor: {PRECISION_PER_ROW:g} a row, {DEGREES} rows",
        distance="Euclidean, of the posterior mean to the mean of the product of both likelihoods",
    )
    by_round: dict[str, np.ndarray] = {}
    for name, scale in SCALES.items():
        precisions, means, data = draw_clients(np.random.default_rng((seed, 31)), num_draws, scale)
        distances = distances_by_round(data, product_means(precisions, means))
        for method, path in distances.items():
            last = path[:, ROUNDS_OF[method] - 1]
            mean, sd = float(np.mean(last)), float(np.std(last, ddof=1))
            paper_mean, paper_sd = PAPER.get(method, (None, None))
            journal.row("distances", psi=name, method=method, rounds=ROUNDS_OF[method], mean=mean, sd=sd,
                        largest=float(np.max(last)), paper_mean=paper_mean, paper_sd=paper_sd)  # fmt: skip
            journal.say(f"Psi {name}: {method} {mean:.1e} +- {sd:.1e}, at most {np.max(last):.1e}")
        if not by_round:  # the first scale is the judged one
            by_round = distances
    _judge(journal, by_round, judged=size is not Size.QUICK)
    journal.figure("estimates", draw_estimates)
    journal.figure("rounds", lambda: draw_rounds(by_round))


def eigenvalues_near_one(rng: np.random.Generator) -> np.ndarray:
    """Psi with a random basis and eigenvalues between 1 and 2."""
    a = rng.random((2, 2))
    left, _, right = np.linalg.svd(a.T @ a)
    return left @ np.diag(1.0 + rng.random(2)) @ right


def normal_square(rng: np.random.Generator) -> np.ndarray:
    """Psi = A A' with standard normal A: often nearly singular."""
    a = rng.normal(size=(2, 2))
    return a @ a.T


SCALES: dict[str, Scale] = {"eigenvalues in (1, 2)": eigenvalues_near_one, "A A', A normal": normal_square}


def draw_clients(rng: np.random.Generator, num_draws: int, scale: Scale) -> tuple[np.ndarray, np.ndarray, Data]:
    """Precisions [draws, 2, 2, 2] and modes [draws, 2, 2] of the clients' likelihoods, and rows that have them."""
    x = np.empty((num_draws, 2, DEGREES, 2))
    means = np.empty((num_draws, 2, 2))
    for i in range(num_draws):
        root = np.linalg.cholesky(np.linalg.inv(scale(rng)))
        for k in range(2):
            x[i, k] = rng.normal(size=(DEGREES, 2)) @ root.T
            means[i, k] = rng.multivariate_normal(np.zeros(2), np.linalg.inv(x[i, k].T @ x[i, k]) / LAMBDA)
    return _as_rows(x, means)


def _as_rows(x: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray, Data]:
    """With unit noise the likelihood of rows (x, x . mu) has the precision x'x, and its mode at mu."""

    def client(x: Array, mean: Array) -> Data:
        return Data((x, x @ mean), jnp.ones(len(x)), jnp.asarray(len(x)))

    return np.einsum("ikrd,ikre->ikde", x, x), means, jax.vmap(jax.vmap(client))(jnp.asarray(x), jnp.asarray(means))


def product_means(precisions: np.ndarray, means: np.ndarray) -> np.ndarray:
    """(P_1 + P_2)^-1 (P_1 mu_1 + P_2 mu_2), of each draw."""
    shift = np.einsum("ikde,ike->id", precisions, means)
    return np.linalg.solve(precisions.sum(1), shift[..., None])[..., 0]


def methods() -> dict[str, PVI]:
    """Each a choice of the parts; undamped."""

    def method(family: type[Gaussian], *, precision_per_row: float | None = None, alone: bool = False) -> PVI:
        flat = FullGaussian(jnp.zeros(2), jnp.zeros((2, 2)))
        prior = flat if family is FullGaussian else DiagonalGaussian(jnp.zeros(2), jnp.zeros(2))
        model = linear_regression(2, noise_sd=1.0, intercept=False, prior=prior)
        solver = MomentMatching(precision_per_row)
        return PVI(model, solver=solver, damping=Fixed(1.0), removed=WholePosterior() if alone else None)

    return {
        FEDAVG: method(DiagonalGaussian, precision_per_row=PRECISION_PER_ROW, alone=True),
        FEDPA: method(DiagonalGaussian, alone=True),
        FEDEP: method(DiagonalGaussian),
        IDENTITY: method(DiagonalGaussian, precision_per_row=PRECISION_PER_ROW),
        FULL: method(FullGaussian),
    }


@eqx.filter_jit
def posterior_means(algorithm: PVI, data: Data, num_rounds: int) -> Float[Array, "draws rounds d"]:
    """After each synchronous round, of all draws in one program: the local engine's rounds, vectorised."""
    empty = algorithm.entries.initial()
    block = algorithm.server.block
    assert block is not None
    entries = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), empty)
    state = BlockState(algorithm.prior, entries, algorithm.server.initial_state(2))
    start = Federation(state, jnp.asarray(0, jnp.uint32), (jnp.zeros(2, jnp.uint32),), (None,))
    seed, names = jnp.uint32(0), (jnp.arange(2, dtype=jnp.uint32),)

    def one_draw(data: Data) -> Float[Array, "rounds d"]:
        def one_round(before: Federation, _: None) -> tuple[Federation, Float[Array, " d"]]:
            inputs = BlockInputs(algorithm, block, algorithm.prior, seed, names, (data,))
            after, _record, num_usable = run_block(inputs, before, 1)
            mean = jnp.where(num_usable == 1, after.state.posterior.mean, jnp.nan)  # a refused round has no distance
            return after, jnp.asarray(mean)

        return jax.lax.scan(one_round, start, None, length=num_rounds)[1]

    return jax.vmap(one_draw)(data)


def distances_by_round(data: Data, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Of each method: [draws, rounds]."""
    found = {name: posterior_means(method, data, NUM_ROUNDS) for name, method in methods().items()}
    return {name: np.linalg.norm(np.asarray(path) - targets[:, None], axis=-1) for name, path in found.items()}


def _judge(journal: Journal, distances: Mapping[str, np.ndarray], judged: bool) -> None:
    means = {name: float(np.mean(path[:, ROUNDS_OF[name] - 1])) for name, path in distances.items()}

    def check(name: str, value: float, bar: str, holds: bool) -> None:
        journal.check(name, value, bar, holds if judged else None)

    check("fedep-1a mean distance of FedEP", means[FEDEP], "<= 1e-6", means[FEDEP] <= 1e-6)
    for letter, method in (("b", FEDPA), ("c", FEDAVG)):
        centre, spread = PAPER[method]
        bar = f"{centre:g} +- {spread:g}, the paper's mean and standard deviation"
        check(f"fedep-1{letter} mean distance of {method}", means[method], bar, abs(means[method] - centre) <= spread)
        own = distances[method][:, ROUNDS_OF[method] - 1]
        error = np.hypot(np.std(own, ddof=1) / np.sqrt(len(own)), spread / np.sqrt(200))
        journal.put(f"{method}: (our mean - the paper's) / standard error", (means[method] - centre) / error)
    check("fedep-1d mean distance of the scaled identity", means[IDENTITY], "<= 1e-3", means[IDENTITY] <= 1e-3)
    largest = float(np.max(distances[FULL][:, 0]))
    check("fedep-1e full covariance: largest distance after one exchange", largest, "<= 1e-12", largest <= 1e-12)


# one pair for the eye: narrow clients that disagree
EXAMPLE_MEANS = np.array([[-1.0, -0.6], [1.6, 0.2]])
EXAMPLE_COVARIANCES = np.array([[[1.0, 0.85], [0.85, 1.0]], [[0.7, -0.45], [-0.45, 0.5]]])


def draw_estimates() -> Figure:
    """Figure 1: both clients, their product, and where each method puts its mean; beside it the way there."""
    from matplotlib.figure import Figure

    roots = np.linalg.cholesky(np.linalg.inv(EXAMPLE_COVARIANCES)).swapaxes(-1, -2)
    precisions, means, data = _as_rows(roots[None], EXAMPLE_MEANS[None])
    target = product_means(precisions, means)[0]
    paths = {name: np.asarray(posterior_means(method, data, NUM_ROUNDS))[0] for name, method in methods().items()}
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    whole, near = (axes_or_new(axes, 4.8, 4.6) for axes in figure.subplots(1, 2, width_ratios=[1.55, 1]))
    product = np.linalg.inv(precisions[0].sum(0))
    for axes in (whole, near):
        for mean, covariance in zip(EXAMPLE_MEANS, EXAMPLE_COVARIANCES, strict=True):
            _ellipses(axes, mean, covariance, GUIDE)
        _ellipses(axes, target, product, "#000000")
        axes.plot(*target, marker="+", markersize=12, markeredgewidth=1.5, color="#000000", linestyle="none",
                  label="mean of the product", zorder=5)  # fmt: skip
        axes.set_aspect("equal")
        axes.set_xlabel("first parameter")
    for i, name in enumerate((FEDAVG, FEDPA, FEDEP, IDENTITY)):
        look = {"color": colour(i), "marker": marker(i), "linestyle": "none", "zorder": 4}
        if name in (FEDAVG, FEDPA):
            whole.plot(*paths[name][0], markersize=8, label=name, **look)
            near.plot(*paths[name][0], markersize=8, **look)
        else:
            whole.plot(*paths[name][-1], markersize=10, fillstyle="none", markeredgewidth=1.4, label=name, **look)
            near.plot(*paths[name].T, markersize=4, linewidth=1.2, **(look | {"linestyle": "-", "zorder": 3}))
            for number in range(2, 5):
                near.annotate(str(number), paths[name][number - 1], xytext=(6, -3), textcoords="offset points",
                              fontsize="small", color=colour(i))  # fmt: skip
    for k, name in enumerate(("client 1", "client 2")):
        whole.annotate(name, EXAMPLE_MEANS[k], ha="center", va="center", color="#555555")
    whole.annotate("product", target, xytext=(0, 46), textcoords="offset points", ha="center", va="bottom")
    shown = np.concatenate([path for name, path in paths.items() if name != FULL])
    near.set_xlim(shown[:, 0].min() - 0.25, shown[:, 0].max() + 0.25)
    near.set_ylim(shown[:, 1].min() - 0.2, shown[:, 1].max() + 0.2)
    near.set_title("the way there, by rounds", fontsize="medium")
    whole.set_title("two clients, one and two standard deviations", fontsize="medium")
    whole.set_ylabel("second parameter")
    whole.legend(frameon=False, loc="lower right", fontsize="small")
    return figure


def _ellipses(axes: Axes, mean: np.ndarray, covariance: np.ndarray, shade: str) -> None:
    """One and two standard deviations around the mean."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])
    for size in (1.0, 2.0):
        axes.plot(*(mean[:, None] + size * circle), color=shade, linewidth=1.6 / size, zorder=1)


def draw_rounds(distances: Mapping[str, np.ndarray]) -> Figure:
    """Figure 4, left: the median distance of all draws after each round, and where the middle 80 % are."""
    axes = axes_or_new(None, 6.4, 4.2)
    axes.set_yscale("log")
    rounds = np.arange(1, NUM_ROUNDS + 1)
    for i, name in enumerate((FEDAVG, FEDPA, FEDEP, IDENTITY)):
        low, middle, high = np.maximum(np.quantile(distances[name], [0.1, 0.5, 0.9], axis=0), 1e-17)
        axes.fill_between(rounds, low, high, color=colour(i), alpha=0.15, linewidth=0)
        axes.plot(rounds, middle, color=colour(i), linewidth=1.8, label=name)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_xlabel("round")
    axes.set_ylabel("distance of the mean to that of the product")
    axes.legend(frameon=False)
    return figure_of(axes)
