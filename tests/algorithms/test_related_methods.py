"""The methods that PVI unifies: every line of docs/methods.md against the method's own definition.

The definitions are in numpy and SciPy: the Gaussian closest to a density, by optimisation on a grid of nodes;
fixed-point and gradient updates written out; EP row after row.
"""

import re
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from scipy.special import expit

import cavity
from cavity.aggregation import Fixed
from cavity.algorithms.cavities import AllButShare, AverageFactor, Everything, Nothing, WholePosterior
from cavity.distributions import FullGaussian
from cavity.models import linear_regression
from cavity.schedules import Sequential
from tests import scenarios
from tests.gaussian_vi import closest_gaussian
from tests.marks import exhaustive, thorough
from tests.numpy_ep import power_ep

pytestmark = pytest.mark.usefixtures("quick_to_compile")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text()
LINES = dict(re.findall(r"^\| ([^|]+?) \| [^|]+ \| `(run\(.+\))` \|$", PAGE, re.MULTILINE))
PRIOR = np.zeros(2), np.eye(2) / 4.0  # precision times mean, and precision


@cache
def page():
    """What the page defines."""
    namespace = {}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/methods.md", "exec"), namespace)
    return namespace


def fitted(method):
    """What the line gives, if it settles more precisely than it would by default."""
    return eval(LINES[method], page() | {"run": partial(cavity.run, tolerance=1e-13)})


def log_likelihood(f, y):
    return y * f - np.logaddexp(0, f)


def rows(name):
    """Design and outcomes of a client, or of all."""
    x, y = (page()["clients"] | page()["pooled"])[name]
    return np.column_stack([np.ones(len(x)), x]), y


CLIENTS = ("leeds", "york", "hull")


def natural(h, precision):
    """One array, so that products of densities are sums."""
    return np.stack([h, *precision])


def parts(eta):
    return eta[0], eta[1:]


def from_moments(mean, covariance):
    precision = np.linalg.inv(covariance)
    return natural(precision @ mean, precision)


def log_factor(eta, theta):
    return theta @ eta[0] - 0.5 * np.sum(theta @ eta[1] * theta, axis=1)


NODES, WEIGHTS = scenarios.hermite(32)


def fixed_point(eta, name):
    """d/dmu E_q[log p(rows)] in mean parameters, (H m - g, H), by the loss's expected gradient g and Hessian H."""
    (h, precision), (design, y) = parts(eta), rows(name)
    covariance = np.linalg.inv(precision)
    mean = covariance @ h
    spread = np.sqrt(np.einsum("nd,de,ne->n", design, covariance, design))
    slopes = expit((design @ mean)[:, None] + spread[:, None] * NODES) - y[:, None]
    H = (design * (slopes @ (WEIGHTS * NODES) / spread)[:, None]).T @ design
    return natural(H @ mean - design.T @ (slopes @ WEIGHTS), H)


def vi(context, name, num_steps=60):
    """Natural parameters of argmax E_q[log p(rows)] - KL(q : context), the context an unnormalised Gaussian.

    An optimiser finds them to the error of its finite differences, and property 3.2 the rest of the digits.
    """
    design, y = rows(name)

    def log_density(theta):
        return np.sum(log_likelihood(theta @ design.T, y), axis=1) + log_factor(context, theta)

    mean, covariance = closest_gaussian(log_density, np.array([-0.2, 1.0]), np.array([0.5, 0.5]))
    found = eta = from_moments(mean, covariance)
    for _ in range(num_steps):
        eta = 0.5 * eta + 0.5 * (natural(*context) + fixed_point(eta, name))
    np.testing.assert_allclose(eta, found, atol=1e-3 * np.abs(found).max())
    return eta


PRIOR_ETA = natural(*PRIOR)


def pooled_vi():
    return vi(PRIOR, "pooled")


def bcm_same():
    return sum(vi(PRIOR, name) for name in CLIENTS) - 2 * PRIOR_ETA


def bcm_split():
    return sum(vi(parts(PRIOR_ETA * len(rows(name)[1]) / 45), name) for name in CLIENTS)


def visits(num_passes):
    """Eq. 5: the posterior so far is the prior of the next client."""
    eta = PRIOR_ETA
    for _ in range(num_passes):
        for name in CLIENTS:
            eta = vi(parts(eta), name)
    return eta


def global_vi_one_client_at_a_time():
    """Eq. 25 with a client as mini-batch: eta <- (1 - rho) eta + rho (eta_0 + N / N_k d/dmu E_q[log p(y_k)])."""
    eta, rho = PRIOR_ETA, 0.1
    for _ in range(5):
        for name in CLIENTS:
            weight = 45 / len(rows(name)[1])
            eta = (1 - rho) * eta + rho * (PRIOR_ETA + weight * fixed_point(eta, name))
    return eta


def free_energy(eta):
    h, precision = parts(eta)
    precision = (precision + precision.T) / 2
    covariance = np.linalg.inv(precision)
    mean = covariance @ h
    design, y = rows("pooled")
    spread = np.sqrt(np.einsum("nd,de,ne->n", design, covariance, design))
    f = (design @ mean)[:, None] + spread[:, None] * NODES
    expected = np.sum(log_likelihood(f, y[:, None]) @ WEIGHTS)
    return expected - scenarios.gaussian_kl(mean, covariance, np.zeros(2), 4.0 * np.eye(2))


def global_vi_by_gradients():
    """Property 3.1: eta <- eta + rate dF/deta on the pooled rows, by central differences."""
    eta = PRIOR_ETA
    for _ in range(5):
        gradient = np.zeros_like(eta)
        for place in np.ndindex(*eta.shape):
            step = np.zeros_like(eta)
            step[place] = 1e-5
            gradient[place] = (free_energy(eta + step) - free_energy(eta - step)) / 2e-5
        eta = eta + 0.05 * gradient
    return eta


def ep(alpha, tied=False):
    return from_moments(*power_ep(log_likelihood, *rows("pooled"), PRIOR, alpha, tied=tied))


def stochastic_ep():
    """Algorithm 4 with M rho = 1 and a client as partition, all at once: t ** M is the product of all refits."""
    eta = PRIOR_ETA
    for _ in range(4):
        cavity_of_all = eta - (eta - PRIOR_ETA) / 3
        tilted = [from_moments(*power_ep(log_likelihood, *rows(name), parts(cavity_of_all), 1.0)) for name in CLIENTS]
        eta = eta + sum(tilted) - 3 * eta
    return eta


def fedpa():
    """The prior times the likelihood approximation of each client alone."""
    return PRIOR_ETA + sum(vi(parts(0 * PRIOR_ETA), name, num_steps=300) for name in CLIENTS)


def alpha_divergence_ep(q):
    """At a fixed point of Algorithm 3, q has the moments of q (p(y_k) / t_k) ** alpha, for each client; on a grid."""
    mean, covariance = np.asarray(q.posterior.mean), np.asarray(q.posterior.covariance)
    found = []
    for name in CLIENTS:
        design, y = rows(name)
        row = q.server.entries[name]

        def log_density(theta, design=design, y=y, row=row):
            tilt = np.sum(log_likelihood(theta @ design.T, y), axis=1) - log_factor(
                (row.precision_mean, row.precision), theta
            )
            shift = theta - mean
            return 0.5 * tilt - 0.5 * np.sum(np.linalg.solve(covariance, shift.T).T * shift, axis=1)

        found.append(scenarios.grid_moments(log_density, mean, np.sqrt(np.diag(covariance)), num_points=201))
    return found


DEFINITIONS = {
    "VI (PVI with M = 1)": pooled_vi,
    "PVI, synchronous": pooled_vi,
    "PVI, sequential": pooled_vi,
    "local VI, one row per client (M = N)": pooled_vi,
    "CVI: one damped fixed-point step per visit": pooled_vi,
    "global VI, fixed points": pooled_vi,
    "global VI, gradients": global_vi_by_gradients,
    "global VI, one client at a time": global_vi_one_client_at_a_time,
    "BCM (same)": bcm_same,
    "BCM (split)": bcm_split,
    "VCL, online VI": lambda: visits(1),
    "streaming VB": lambda: visits(3),
    "FedPA": fedpa,
    "EP": lambda: ep(1.0),
    "power EP (PEP)": lambda: ep(0.5),
    "stochastic power EP (SPEP) inside a client": lambda: ep(0.5, tied=True),
    "stochastic EP over clients": stochastic_ep,
}


def distance(q, eta) -> float:
    """The largest difference of means and covariances, in units of standard deviations."""
    h, precision = parts(eta)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    shift = np.abs(np.asarray(q.mean) - covariance @ h) / sd
    return max(shift.max(), np.abs((np.asarray(q.covariance) - covariance) / np.outer(sd, sd)).max())


def test_every_line_has_a_definition():
    assert set(LINES) == set(DEFINITIONS) | {"alpha-divergence EP (ADPEP)"}


@pytest.mark.parametrize("method", DEFINITIONS)
@thorough
def test_a_line_is_its_method(method):
    assert distance(fitted(method).posterior, DEFINITIONS[method]()) < 1e-5


@thorough
def test_alpha_divergence_ep_matches_the_moments_of_every_client():
    fit = fitted("alpha-divergence EP (ADPEP)")
    assert fit.converged
    for other_mean, other_covariance in alpha_divergence_ep(fit):
        assert distance(fit.posterior, from_moments(other_mean, other_covariance)) < 1e-3
    assert distance(fit.posterior, pooled_vi()) > 3e-3


@thorough
def test_the_methods_differ():
    """By more than the tolerance above, so that none of these tests would pass for another method."""
    ends = [definition() for definition in {id(part): part for part in DEFINITIONS.values()}.values()]
    for i, eta in enumerate(ends):
        h, precision = parts(eta)
        for other in ends[i + 1 :]:
            assert distance(FullGaussian(h, precision), other) > 5e-4


# closed forms, and what the parts refuse

LINEAR = scenarios.linear(num_rows=30)
NOISE_SD, PRIOR_SCALE = 0.7, 3.0


def linear_run(removed, rounds, schedule=None, damping=None):
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)
    split = scenarios.clients(*LINEAR, np.split(np.arange(30), [4, 15]))
    algorithm = cavity.PVI(model, removed=removed, damping=damping or Fixed(1.0))
    return cavity.run(algorithm, split, rounds=rounds, schedule=schedule, tolerance=0.0)


def assert_counts(fit, times, rtol=1e-9):
    """The posterior in which every row counts so many times."""
    h, precision = scenarios.linear_posterior(*LINEAR, NOISE_SD, PRIOR_SCALE)
    prior = np.eye(4) / PRIOR_SCALE**2
    np.testing.assert_allclose(fit.posterior.precision, prior + times * (precision - prior), rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(fit.posterior.precision_mean, times * h, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("schedule", [None, Sequential()], ids=["synchronous", "sequential"])
def test_without_deletion_rows_count_once_per_pass(schedule):
    for passes in (1, 3):
        assert_counts(linear_run(Nothing(), passes, schedule), passes)


@pytest.mark.parametrize(
    "removed",
    [None, AllButShare(30), AverageFactor(3), WholePosterior()],
    ids=["own", "share", "average", "whole"],
)
def test_linear_regression_is_exact_and_stays_so(removed):
    for rounds in (1, 3):
        assert_counts(linear_run(removed, rounds), 1)


def test_clients_that_represent_all_rows_count_them_once():
    """With equal rows at all clients, each client's weight N / N_k makes them the pooled rows; N_k / N would not."""
    x, y = (part[:10] for part in LINEAR)
    model = linear_regression(3, noise_sd=NOISE_SD, prior_scale=PRIOR_SCALE)
    algorithm = cavity.PVI(model, removed=Everything(30), damping=Fixed(1.0))
    fit = cavity.run(algorithm, dict.fromkeys(CLIENTS, (x, y)), schedule=Sequential(), rounds=1)
    h, precision = scenarios.linear_posterior(np.tile(x, (3, 1)), np.tile(y, 3), NOISE_SD, PRIOR_SCALE)
    np.testing.assert_allclose(fit.posterior.precision, precision, rtol=1e-9)
    np.testing.assert_allclose(fit.posterior.precision_mean, h, rtol=1e-9)
    assert np.isnan(fit.history[-1]["free_energy"])  # the local terms are of more rows than there are


@exhaustive
@thorough
def test_small_steps_of_global_vi_end_near_the_pooled_optimum():
    """One client at a time, in one order, all of one size: the bias is of the order of the step."""
    namespace, errors = page(), []
    clients = scenarios.clients(namespace["x"], namespace["y"], scenarios.homogeneous(45, 3))
    for rho in (0.1, 0.02):
        algorithm = cavity.PVI(
            namespace["model"],
            solver=namespace["FixedPoint"](rho, max_steps=1),
            damping=Fixed(1.0),
            removed=Everything(45),
        )
        fit = cavity.run(algorithm, clients, schedule=Sequential(), rounds=int(4 / rho), tolerance=0.0)
        errors.append(distance(fit.posterior, pooled_vi()))
    assert 3 < errors[0] / errors[1] < 8
    assert errors[1] < 0.05


def test_the_posterior_is_prior_times_entries_whatever_is_removed():
    for removed in (Nothing(), AllButShare(30), AverageFactor(3), Everything(30), WholePosterior()):
        fit = linear_run(removed, 2, damping=Fixed(0.7))
        total = sum(row.precision for row in fit.server.entries.values()) + fit.server.prior.precision
        np.testing.assert_allclose(fit.posterior.precision, total, rtol=1e-12)


@thorough
def test_a_saved_fit_resumes(tmp_path):
    namespace = page()
    algorithm = cavity.PVI(
        namespace["model"], solver=namespace["PowerEP"](0.5), damping=Fixed(1.0), removed=AverageFactor(3)
    )
    fit = cavity.run(algorithm, namespace["clients"], rounds=4, tolerance=0.0)
    cavity.run(algorithm, namespace["clients"], rounds=2, tolerance=0.0, directory=tmp_path)
    again = cavity.resume(tmp_path, namespace["clients"], rounds=4, tolerance=0.0)
    assert isinstance(again.algorithm.removed, AverageFactor)
    np.testing.assert_array_equal(again.posterior.precision, fit.posterior.precision)


def test_bad_choices():
    model = linear_regression(1, noise_sd=1.0)
    with pytest.raises((cavity.CavityError, TypeCheckError), match="removed"):
        cavity.PVI(model, removed="nothing")
    with pytest.raises(cavity.CavityError, match="number of clients, at least 1, not 0"):
        AverageFactor(0)
    for part in (Everything, AllButShare):
        with pytest.raises(cavity.CavityError, match="number of rows of all clients must be positive, not 0"):
            part(0)
