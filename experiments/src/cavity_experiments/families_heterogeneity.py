"""`Fit.heterogeneity`: the share of clients that are flagged where all agree, and of those that differ.

Each simulated study has clients with the same number of rows, an intercept and three slopes. A planted effect moves the
first slope of the first client by a number of the standard errors that this client alone would have.

Thousands of studies are fitted together: the fixed point of PVI is computed here with factors of all clients at once,

    Lambda_k = -2 d/dV E_q[log p(y_k | theta)],     eta_k = d/dm E_q[log p(y_k | theta)] + Lambda_k m,

q = N(m, V) being the prior times all factors. Some of the studies are also run by `cavity.run`, and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from cavity.algorithms import PVI
from cavity.fit.heterogeneity import ALPHA, ClientDifference, client_difference
from cavity.fit.run import run
from cavity.models.glm.regression import Regression, linear_regression, logistic_regression
from cavity_experiments.runner import Journal, Size

BETA = np.array([0.3, 0.3, -0.5, 0.2])  # intercept and slopes
PLANTED, FOUND = (4.0, 6.0), {4.0: 0.70, 6.0: 0.97}  # standard errors, and the share that is found at least
STEPS = 12  # of the fixed point, from the simulated coefficients; that they suffice is checked
TOGETHER = 50  # studies that are fitted together
COMPARED = 3  # studies that are run by `cavity.run` too
SAME = 1e-4  # difference of z between the two, and of the last step in posterior sds
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
Expected = Callable[..., jax.Array]


@dataclass(frozen=True)
class Design:
    """How studies are simulated and fitted.

    Attributes:
        model: the regression.
        expected: E_q[log p(y | theta)] of a client, of the mean and covariance of q and its rows x (with ones) and y.
        num_clients: of a study.
        num_rows: of a client.
    """

    model: Regression
    expected: Expected
    num_clients: int
    num_rows: int

    @property
    def is_logistic(self) -> bool:
        return self.model.prior.dimension == len(BETA)

    def simulate(self, rng: np.random.Generator, planted: float) -> tuple[np.ndarray, np.ndarray]:
        """Columns (with ones) and outcomes of all clients."""
        shape = (self.num_clients, self.num_rows)
        x = np.concatenate([np.ones((*shape, 1)), rng.normal(size=(*shape, len(BETA) - 1))], axis=-1)
        beta = np.tile(BETA, (self.num_clients, 1))
        beta[0, 1] += planted * self.standard_error(x[0], planted)
        f = np.einsum("knp,kp->kn", x, beta)
        if self.is_logistic:
            return x, (rng.uniform(size=shape) < 1 / (1 + np.exp(-f))).astype(float)
        return x, f + rng.normal(size=shape)

    def standard_error(self, x: np.ndarray, planted: float) -> float:
        """Of the first slope, by the Fisher information of one client at its own coefficients."""
        error, beta = 0.0, BETA.copy()
        for _ in range(50):
            beta[1] = BETA[1] + planted * error
            p = 1 / (1 + np.exp(-x @ beta))
            weight = p * (1 - p) if self.is_logistic else np.ones(len(x))
            error = float(np.sqrt(np.linalg.inv(x.T @ (weight[:, None] * x))[1, 1]))
        return error


def expected_gaussian(mean: jax.Array, covariance: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """With f = x . beta and s the log of the noise sd: E[-s - exp(-2 s) (y - f)^2 / 2], without constants.

    Under exp(-2 s) q(f, s) / E[exp(-2 s)], f has the mean E[f] - 2 Cov(f, s) and the same variance.
    """
    s, variance = mean[-1], covariance[-1, -1]
    tilted = x @ (mean[:-1] - 2 * covariance[:-1, -1])
    spread = jnp.einsum("np,pq,nq->n", x, covariance[:-1, :-1], x)
    return jnp.sum(-s - 0.5 * jnp.exp(2 * variance - 2 * s) * ((y - tilted) ** 2 + spread))


def expected_logistic(mean: jax.Array, covariance: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """E[y f - log(1 + exp(f))] by quadrature."""
    centre, sd = x @ mean, jnp.sqrt(jnp.einsum("np,pq,nq->n", x, covariance, x))
    f = centre[:, None] + sd[:, None] * NODES
    return jnp.sum(y * centre - jax.nn.softplus(f) @ (WEIGHTS / WEIGHTS.sum()))


def designs() -> dict[str, Design]:
    """Two families; they are made in double precision."""
    names = ("x1", "x2", "x3")
    return {
        "logistic": Design(logistic_regression(names), expected_logistic, 8, 400),
        "gaussian": Design(linear_regression(names), expected_gaussian, 8, 100),
    }


def factors_of(design: Design, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and precision times mean of the factors [study, client, ...], given rows [study, client, row, ...]."""
    prior = design.model.prior
    size, precision = prior.dimension, jnp.diag(1 / prior.variance)

    def factors(m: jax.Array, v: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope, half = jax.vmap(jax.grad(design.expected, (0, 1)), (None, None, 0, 0))(m, v, x, y)
        own = -(half + half.swapaxes(1, 2))
        return own, slope + own @ m

    def step(q: tuple[jax.Array, jax.Array], x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        own, linear = factors(*q, x, y)
        v = jnp.linalg.inv(precision + own.sum(0))
        return v @ (precision @ prior.mean + linear.sum(0)), v

    def one(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        rows = y.size
        start = jnp.zeros(size).at[: len(BETA)].set(BETA), jnp.eye(size) / rows
        m, v = jax.lax.fori_loop(0, STEPS, lambda _, q: step(q, x, y), start)
        moved = jnp.max(jnp.abs(step((m, v), x, y)[0] - m) / jnp.sqrt(jnp.diag(v)))
        return *factors(m, v, x, y), moved

    own, linear, moved = jax.jit(jax.vmap(one))(x, y)
    assert float(jnp.max(moved)) < SAME, "the fixed point is not reached"
    return np.asarray(own), np.asarray(linear)


def differences(design: Design, own: np.ndarray, linear: np.ndarray) -> list[ClientDifference]:
    """All clients of one study, as `Fit.heterogeneity` has them."""
    prior = design.model.prior
    precision = np.diag(1 / np.asarray(prior.variance))
    first = precision @ np.asarray(prior.mean)

    def moments(clients: list[int]) -> tuple[np.ndarray, np.ndarray]:
        covariance = np.linalg.inv(precision + own[clients].sum(0))
        return covariance @ (first + linear[clients].sum(0)), covariance

    everyone = list(range(len(own)))
    names = design.model.parameter_names
    together, coefficients = moments(everyone), names[: len(BETA)]
    return [
        client_difference(f"c{k}", names, together, moments([i for i in everyone if i != k]), coefficients)
        for k in everyone
    ]


def flags(design: Design, num_studies: int, planted: float, seed: int) -> np.ndarray:
    """Which clients are flagged, [study, client]."""
    rng, found = np.random.default_rng([seed, int(10 * planted)]), []
    for start in range(0, num_studies, TOGETHER):
        studies = [design.simulate(rng, planted) for _ in range(TOGETHER)][: num_studies - start]
        x, y = (np.stack(part) for part in zip(*studies, strict=True))
        for own, linear in zip(*factors_of(design, x, y), strict=True):
            found.append([client.flagged for client in differences(design, own, linear)])
    return np.array(found)


def largest_difference(design: Design, seed: int, num_studies: int = COMPARED) -> float:
    """Of z between `cavity.run` with `Fit.heterogeneity`, and the fixed point that is computed here."""
    rng, algorithm, worst = np.random.default_rng(seed), PVI(design.model), 0.0
    for _ in range(num_studies):
        x, y = design.simulate(rng, PLANTED[0])
        fit = run(algorithm, {f"c{k}": (x[k][:, 1:], y[k]) for k in range(design.num_clients)}, tolerance=1e-10)
        (own,), (linear,) = factors_of(design, x[None], y[None])
        here = differences(design, own, linear)
        for client, other in zip(fit.heterogeneity(), here, strict=True):
            worst = max(worst, *(abs(z - other.z[name]) for name, z in client.z.items()))
    return worst


def heterogeneity(journal: Journal, size: Size, seed: int) -> None:
    """The level and the power of the flag, in 1,000 studies of each family and planted effect.

    Quick has 50 studies of the gaussian family. The power depends on the number of clients K: the expected z is
    planted * sqrt((K - 1) / K), since the others have errors too. With five clients and known noise it is 71 % for 4.
    """
    num_studies = {Size.QUICK: 50, Size.DEFAULT: 1000, Size.FULL: 10_000}[size]
    with jax.enable_x64(True):
        for name, design in designs().items():
            if size is Size.QUICK and design.is_logistic:
                continue
            off = largest_difference(design, seed, 1 if size is Size.QUICK else COMPARED)
            journal.check(f"families flags, {name}: z as cavity.run", off, f"within {SAME:g}", off < SAME)
            agree = flags(design, num_studies, 0.0, seed)
            level, error = float(agree.mean()), float(np.sqrt(ALPHA * (1 - ALPHA) / agree.size))
            cells = {"clients": design.num_clients, "rows": design.num_rows, "studies": num_studies}
            journal.row("flags", family=name, planted=0.0, share=level, **cells)
            journal.say(f"{name}: {level:.2%} of clients are flagged where all agree")
            journal.check(
                f"families flags, {name}: all agree",
                level,
                f"at most {ALPHA:.0%}, within 3 standard errors of the simulation",
                level < ALPHA + 3 * error,
            )
            for planted in PLANTED:
                share = float(flags(design, num_studies, planted, seed)[:, 0].mean())
                journal.row("flags", family=name, planted=planted, share=share, **cells)
                journal.say(f"{name}: {share:.1%} of clients with a slope {planted:g} standard errors away are flagged")
                bar, decides = FOUND[planted], size is not Size.QUICK
                journal.check(
                    f"families flags, {name}: {planted:g} standard errors",
                    share,
                    f"at least {bar:.0%}",
                    share >= bar if decides else None,
                )
