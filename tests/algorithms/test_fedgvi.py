"""FedGVI: its limits, its fixed points, its safeguards."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import cavity
from cavity import losses
from cavity.aggregation import Fixed
from cavity.algorithms.cavities import OwnFactor
from cavity.algorithms.factors import FactorAlgorithm, FactorClient, Factors
from cavity.core import Problem
from cavity.core.client_data import prepare_clients
from cavity.core.messages import ClientInput
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.distributions.natural import product
from cavity.divergences import KL, FisherRao, Renyi, ReverseKL, WeightedKL
from cavity.likelihoods import GaussianVector
from cavity.losses import InverseMultiQuadric, NegativeLogLikelihood, ScoreMatching, SquaredExponential, Tempered
from cavity.models import linear_regression, logistic_regression, mlp_classifier, normal_location
from cavity.simulation.drive import run_client
from cavity.solvers import Conjugate, Gradient, NaturalGradient
from tests.contracts.solver import solved
from tests.marks import thorough

NLL = NegativeLogLikelihood()


def rows(seed=0, num_rows=60, columns=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, columns))
    return x, x @ np.arange(1.0, columns + 1) + rng.normal(size=num_rows)


def split(batch, num_clients=4):
    return {f"client-{m}": tuple(np.array_split(leaf, num_clients)[m] for leaf in batch) for m in range(num_clients)}


def classes(seed=0, num_rows=80):
    x, f = rows(seed, num_rows)
    return x, (np.random.default_rng(seed + 1).random(num_rows) < 1 / (1 + np.exp(-f))).astype(float)


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def network_case():
    model = mlp_classifier(2, (4,), 2)
    return model, classes(), {"solver": Gradient(optax.adam, 0.01, 20, batch_size=16)}


PVI_CASES = {
    "closed form": lambda: (linear_regression(2, noise_sd=1.0), rows(), {}),
    "natural gradient": lambda: (logistic_regression(2), classes(), {}),
    "mini-batches": network_case,
}


@thorough
@pytest.mark.parametrize("case", PVI_CASES)
def test_with_likelihood_and_kl_it_is_pvi_bit_for_bit(case):
    model, batch, options = PVI_CASES[case]()
    pvi = cavity.run(cavity.PVI(model, **options), split(batch), rounds=3, tolerance=0.0)
    gvi = cavity.run(cavity.FedGVI(model, NLL, KL(), **options), split(batch), rounds=3, tolerance=0.0)
    assert equal(pvi.posterior, gvi.posterior)
    assert equal(pvi.server.entries, gvi.server.entries)
    assert [r["gap"] for r in pvi.history] == [r["gap"] for r in gvi.history]
    np.testing.assert_array_equal([r["free_energy"] for r in pvi.history], [r["free_energy"] for r in gvi.history])


def generalised_posterior(model, batch, power):
    """prior * likelihood ** power, from the normal equations."""
    x, y = batch
    design = np.concatenate([np.ones((len(y), 1)), x], axis=1)
    precision = np.asarray(model.prior.precision) + power * design.T @ design
    return FullGaussian(np.asarray(model.prior.precision_mean) + power * design.T @ y, precision)


@pytest.mark.parametrize("power", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("how", ["divergence", "loss"])
def test_lemma_4_6_undamped(power, how):
    """The generalised posterior after one round, and no change after it."""
    model, batch = linear_regression(2, noise_sd=1.0), rows()
    loss, divergence = (NLL, WeightedKL(power)) if how == "divergence" else (Tempered(power), KL())
    method = cavity.FedGVI(model, loss, divergence, damping=Fixed(1.0))
    assert isinstance(method.solver, Conjugate)
    expected = generalised_posterior(model, batch, power)
    for num_rounds in (1, 3):
        fit = cavity.run(method, split(batch), rounds=num_rounds, tolerance=0.0)
        assert cavity.kl(fit.posterior, expected) < 1e-18
    assert fit.history[-1]["gap"] < 1e-18


def test_lemma_4_6_damped():
    """With damping 1/M the error of every factor shrinks by (M - 1) / M per round."""
    model, batch, num_clients = linear_regression(2, noise_sd=1.0), rows(), 4
    clients = split(batch, num_clients)
    targets = {name: generalised_posterior(model, part, 0.7) / model.prior for name, part in clients.items()}
    errors = []

    def measure(record, server):
        errors.append(max(np.abs((server.entries[n] / targets[n]).precision).max() for n in clients))

    method = cavity.FedGVI(model, NLL, WeightedKL(0.7), damping=Fixed(1 / num_clients))
    cavity.run(method, clients, rounds=12, tolerance=0.0, observers=[measure])
    np.testing.assert_allclose(np.array(errors[1:]) / errors[:-1], (num_clients - 1) / num_clients, rtol=1e-9)


class WithoutCavity(FactorAlgorithm):
    """Eqs. 4 and 5 with something else in the cavity's place."""

    model: Any
    solver: Any
    damping: Any
    loss: Any
    divergence: Any
    removed: Any
    instead: str

    @property
    def entries(self):
        return Factors(self.prior)

    @property
    def client(self):
        return InsteadClient(self.solver, self.density, self.removed, self.instead)


class InsteadClient(FactorClient):
    instead: str

    def problem(self, inputs, local, data):
        prior = self.density.model.prior
        places = {"posterior": inputs.posterior, "prior": prior, "cavity": inputs.posterior / inputs.entry}
        density, place = self.density, places[self.instead]
        return Problem(density.model, density.loss, density.divergence, place, inputs.posterior, data)


@pytest.mark.parametrize(("instead", "num_clients", "is_fixed"), [
    ("cavity", 3, True), ("posterior", 3, False), ("prior", 3, False), ("prior", 1, True),
])  # fmt: skip
def test_theorem_4_9_the_cavity_is_necessary(instead, num_clients, is_fixed):
    """From the generalised posterior, one more round moves it unless the cavity stands in the cavity's place."""
    model, clients = linear_regression(2, noise_sd=1.0), split(rows(), num_clients)
    method = WithoutCavity(model, Conjugate(), Fixed(1.0), NLL, WeightedKL(0.5), OwnFactor(), instead)
    at_fixed_point = cavity.run(cavity.FedGVI(model, NLL, WeightedKL(0.5), damping=Fixed(1.0)), clients, rounds=1)
    server = at_fixed_point.server
    moved = cavity.fit.run.Fit(method, server, [], "rounds", at_fixed_point.schedule, at_fixed_point.clients).refine(1)
    distance = cavity.kl(moved.posterior, server.posterior)
    assert distance < 1e-18 if is_fixed else distance > 0.1


@pytest.mark.slow
def test_proposition_4_3_the_opinion_pool():
    """Damping 1/M: the posterior is the geometric mean of the tilted distributions, after any number of rounds."""
    model, clients = logistic_regression(2), split(classes())
    loss = losses.Beta(0.5)
    method = cavity.FedGVI(model, loss, damping=Fixed(1 / len(clients)))
    fit = cavity.run(method, clients, rounds=2, tolerance=0.0)
    tilted = []
    for name, data in fit.clients.items():
        posterior, row = jax.tree.map(jnp.asarray, (fit.posterior, fit.server.entries[name]))
        problem = Problem(model, loss, KL(), posterior / row, posterior, jax.tree.map(jnp.asarray, data))
        tilted.append(solved(method.solver, problem).tilted ** (1 / len(clients)))
    after = fit.refine(1, tolerance=0.0)
    assert cavity.kl(after.posterior, product(jax.device_get(tilted))) < 1e-12


@pytest.mark.parametrize(("loss", "family"), [
    (losses.Beta(0.5), FullGaussian), (losses.Gamma(1.5), DiagonalGaussian),
    (losses.GeneralisedCrossEntropy(0.7), FullGaussian),
])  # fmt: skip
@thorough
def test_proposition_4_4_a_fixed_point_is_a_pooled_optimum(loss, family):
    """E[sum of losses] + KL / w over all rows, found by SciPy in other coordinates from the pooled rows."""
    model, batch, w = logistic_regression(2, covariance=family), classes(), 1.5
    fit = cavity.run(cavity.FedGVI(model, loss, WeightedKL(w)), split(batch), rounds=300, tolerance=1e-12)
    assert fit.converged
    x, y = batch
    design = np.concatenate([np.ones((len(y), 1)), x], axis=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    prior_variance = np.asarray(model.prior.variance)

    def objective(parameters):
        mean, root = parameters[:3], np.zeros((3, 3))
        root[np.diag_indices(3)] = np.exp(parameters[3:6])
        if family is FullGaussian:
            root[np.tril_indices(3, -1)] = parameters[6:]
        covariance = root @ root.T
        sd = np.sqrt(np.einsum("ni,ij,nj->n", design, covariance, design))
        p = 1 / (1 + np.exp(-((design @ mean)[:, None] + sd[:, None] * nodes)))
        of_y = np.where(y[:, None] == 1, p, 1 - p)
        if isinstance(loss, losses.Beta):
            b = 0.5
            value = -(of_y**b) / b + (p ** (1 + b) + (1 - p) ** (1 + b)) / (1 + b)
        elif isinstance(loss, losses.Gamma):
            g = 1.5
            value = -g / (g - 1) * of_y ** (g - 1) / (p**g + (1 - p) ** g) ** ((g - 1) / g)
        else:
            value = (1 - of_y**0.7) / 0.7
        kl = 0.5 * np.sum((np.diag(covariance) + mean**2) / prior_variance - 1 + np.log(prior_variance))
        return np.sum(value @ weights) + (kl - np.sum(parameters[3:6])) / w

    size = 9 if family is FullGaussian else 6
    start = np.concatenate([np.asarray(fit.posterior.mean) + 0.1, np.full(3, -1.0), np.zeros(size - 6)])
    found = minimize(objective, start, method="BFGS", options={"gtol": 1e-9}).x
    root = np.diag(np.exp(found[3:6]))
    root[np.tril_indices(3, -1)] = found[6:] if size == 9 else 0.0
    reference = FullGaussian.from_moments(jnp.asarray(found[:3]), jnp.asarray(root @ root.T))
    ours = FullGaussian.from_moments(fit.posterior.mean, fit.posterior.covariance)
    assert cavity.kl(ours, reference) < 1e-8


@pytest.mark.parametrize(("kernel", "model", "batch"), [
    (SquaredExponential(2.0), linear_regression(2, noise_sd=0.7), rows()),
    (InverseMultiQuadric(1.0), normal_location(2, noise_covariance=[[1.0, 0.4], [0.4, 0.8]]), rows()[:1]),
])  # fmt: skip
@thorough
def test_score_matching_in_closed_form_and_by_descent(kernel, model, batch):
    """The conjugate update is the minimiser that another solver finds (proposition 4.10)."""
    clients = {name: part if len(batch) > 1 else part[0] for name, part in split(batch).items()}
    posteriors = [
        cavity.run(
            cavity.FedGVI(model, ScoreMatching(kernel), solver=solver), clients, rounds=3, tolerance=0.0
        ).posterior
        for solver in (None, NaturalGradient(tolerance=1e-16))
    ]
    assert cavity.kl(*posteriors) < 1e-10


def test_score_matching_ignores_what_is_far_away():
    model = normal_location(prior_scale=10.0)
    rng = np.random.default_rng(0)
    clean = {"a": rng.normal(size=40), "b": rng.normal(size=40)}
    fits = []
    for outlier in (8.0, 1e6):
        clients = clean | {"b": np.append(clean["b"], outlier)}
        method = cavity.FedGVI(model, ScoreMatching(SquaredExponential(2.0)), damping=Fixed(0.5))
        fits.append(cavity.run(method, clients, rounds=200, tolerance=1e-14))
    assert cavity.kl(fits[1].posterior, fits[0].posterior) < 1e-4
    assert all(np.isnan(record["free_energy"]) for record in fits[0].history)  # its loss moves with the cavity


DISTANCES = {  # D(N(m, v) : N(0, u)) from the textbook
    "Renyi 1.5": (Renyi(1.5), lambda m, v, u: _renyi(1.5, m, v, u)),
    "Renyi 0.5": (Renyi(0.5), lambda m, v, u: _renyi(0.5, m, v, u)),
    "reverse KL": (ReverseKL(), lambda m, v, u: 0.5 * (u / v + m**2 / v - 1 - np.log(u / v))),
    "Fisher-Rao": (FisherRao(), lambda m, v, u: np.sqrt(2) * np.arccosh(
        1 + (m**2 / 2 + (np.sqrt(v) - np.sqrt(u)) ** 2) / (2 * np.sqrt(u * v)))),
}  # fmt: skip


def _renyi(alpha, m, v, u):
    mixed = alpha * u + (1 - alpha) * v
    if mixed <= 0:
        return np.inf
    return 0.5 * m**2 / mixed - 0.5 / (alpha * (alpha - 1)) * np.log(mixed / (v ** (1 - alpha) * u**alpha))


@pytest.mark.parametrize("name", DISTANCES)
@thorough
def test_other_divergences_at_a_client(name):
    """One client's posterior is the minimiser of E[loss] + D(q : prior); SciPy finds it on its own."""
    divergence, distance = DISTANCES[name]
    y, u = np.array([1.0, 1.0, 1.0, 0.0, 1.0]), 4.0
    model = logistic_regression([], prior_scale=u**0.5, covariance=DiagonalGaussian)
    clients = {"a": (np.zeros((5, 0)), y)}
    fit = cavity.run(cavity.FedGVI(model, NLL, divergence, damping=Fixed(1.0)), clients, rounds=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def objective(parameters):
        f = parameters[0] + np.exp(parameters[1]) * nodes
        expected = (5 * np.logaddexp(0, f) - 4 * f) @ weights / weights.sum()
        return expected + distance(parameters[0], np.exp(2 * parameters[1]), u)

    found = minimize(objective, [1.0, -0.5], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}).x
    ours = [float(fit.posterior.mean[0]), 0.5 * float(np.log(fit.posterior.variance[0]))]
    np.testing.assert_allclose(ours, found, atol=1e-5)
    assert np.isnan(fit.history[-1]["free_energy"])  # it has none, and none is invented


@pytest.mark.slow
def test_another_divergence_at_the_server():
    """With Renyi at the server the posterior still is rebuilt from prior and rows, in single rounds and in blocks."""
    model, clients = normal_location(prior_scale=2.0), {"a": np.arange(3.0), "b": np.array([1.0, 4.0])}
    method = cavity.FedGVI(model, NLL, server_divergence=Renyi(0.5), damping=Fixed(0.5))
    fit = cavity.run(method, clients, rounds=3, tolerance=0.0)
    rebuilt = method.server.entries.rebuild(fit.server.prior, list(fit.server.entries.values()))
    assert cavity.kl(fit.posterior, rebuilt) < 1e-14
    assert cavity.kl(fit.posterior, fit.server.prior * product(list(fit.server.entries.values()))) > 1e-6
    in_blocks = cavity.run(method, clients, rounds=3, tolerance=0.0, rounds_per_block=3)
    assert cavity.kl(in_blocks.posterior, fit.posterior) < 1e-10


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian, IsotropicGaussian])
def test_how_much_of_a_factor_can_be_removed(family):
    def member(precision):
        precision = jnp.asarray(precision)
        if family is IsotropicGaussian:
            return IsotropicGaussian(jnp.ones(2), precision[0])
        return (
            DiagonalGaussian(jnp.ones(2), precision)
            if family is DiagonalGaussian
            else FullGaussian(jnp.ones(2), jnp.diag(precision))
        )

    q, least = member([2.0, 2.0]), member([0.2, 0.2])
    for factor in (member([0.5, -1.0]), member([1.7, 1.7])):  # leaves more than the least: all of it
        assert equal(q.without(factor, least), q / factor)
    for factor in (member([3.0, 3.0]), member([1.9, 1.9]), member([1e6, 1e6])):
        kept = q.without(factor, least)
        share = 1.8 / factor.precision_matrix[0, 0]
        np.testing.assert_allclose(kept.variance, 1 / 0.2, rtol=1e-9)
        np.testing.assert_allclose(kept.precision_mean, 1 - share, rtol=1e-9)
    narrow = member([0.1, 0.1])  # less than the least: nothing of a factor can be removed
    np.testing.assert_allclose(narrow.without(member([3.0, 3.0]), least).precision_matrix, narrow.precision_matrix)


@pytest.mark.parametrize(
    ("sizes", "family"), [((60,), FullGaussian), ((60,), DiagonalGaussian), ((50, 10), FullGaussian)]
)
@thorough
def test_a_client_with_nearly_all_rows_converges(sizes, family):
    """Its cavity is little more than the prior, and must stay so: else its own rows would count twice."""
    model, (x, y) = logistic_regression(2, prior_scale=10.0, covariance=family), classes(num_rows=60)
    parts = np.split(np.arange(60), np.cumsum(sizes)[:-1])
    clients = {f"client-{m}": (x[part], y[part]) for m, part in enumerate(parts)}
    pooled = cavity.run(cavity.FedGVI(model, losses.Beta(0.5)), {"all": (x, y)}, rounds=1)
    fit = cavity.run(cavity.FedGVI(model, losses.Beta(0.5)), clients, rounds=60, tolerance=1e-10)
    assert fit.converged
    assert cavity.kl(fit.posterior, pooled.posterior) < 1e-8


@thorough
@pytest.mark.parametrize(("loss", "divergence"), [
    (losses.Beta(0.7), KL()), (NLL, ReverseKL()), (NLL, FisherRao()),
    (ScoreMatching(SquaredExponential(2.0)), KL()),
])  # fmt: skip
def test_what_needs_a_proper_cavity_gets_one(loss, divergence):
    """With posterior / factor improper there would be no minimiser; less is removed, and nothing diverges."""
    model = linear_regression(1, noise_sd=1.0, prior_scale=3.0, covariance=DiagonalGaussian)
    method = cavity.FedGVI(model, loss, divergence)
    posterior = DiagonalGaussian(jnp.array([1.0, 2.0]), jnp.array([4.0, 4.0]))
    row = DiagonalGaussian(jnp.array([0.5, 1.0]), jnp.array([5.0, 1.0]))  # the first coordinate's cavity is improper
    data = jax.tree.map(jnp.asarray, prepare_clients(model, {"a": rows(num_rows=10, columns=1)})["a"])
    inputs = ClientInput(posterior, row)
    problem = method.client.problem(inputs, None, data)
    least = 0.5 / 9  # half of the prior's precision
    np.testing.assert_allclose(problem.cavity.precision, [least, 3.0])
    np.testing.assert_allclose(problem.cavity.precision_mean, [1.0 - 0.5 * (4.0 - least) / 5.0, 1.0])
    update, _, _ = run_client(method.client, jax.random.key(0), inputs, None, data)
    refit = row * update.delta  # the new factor is tilted / cavity, with the cavity that was used
    tilted = problem.cavity * refit
    assert bool(tilted.is_proper)
    assert np.all(np.abs(tilted.mean) < 15)  # score matching stays at the mean of the cavity, which is 11


@thorough
def test_a_sweep_over_a_number_compiles_once(monkeypatch):
    """Numbers are leaves: beta and alpha change without a new trace."""
    traces = []
    plain = losses.Beta.assemble

    def counted(self, likelihood, f, log_power):
        traces.append(None)
        return plain(self, likelihood, f, log_power)

    monkeypatch.setattr(losses.Beta, "assemble", counted)
    model, clients = normal_location(covariance=DiagonalGaussian), {"a": np.arange(4.0), "b": np.ones(4)}
    counts = []
    for beta, alpha in ((0.3, 1.2), (0.5, 1.2), (0.5, 2.0)):
        cavity.run(cavity.FedGVI(model, losses.Beta(beta), Renyi(alpha)), clients, rounds=1)
        counts.append(len(traces))
    assert counts[0] > 0
    assert counts == [counts[0]] * 3


def test_a_network_of_several_outcomes_stays_in_single_precision():
    likelihood = GaussianVector.from_covariance(np.array([[1.0, 0.3], [0.3, 2.0]]))
    f, y = jnp.zeros((3, 2), jnp.float32), jnp.ones((3, 2), jnp.float32)
    covariance = jnp.broadcast_to(jnp.eye(2, dtype=jnp.float32), (3, 2, 2))
    for value in (
        likelihood.log_prob(f, y),
        likelihood.log_power_integral(f, jnp.float32(1.5)),
        likelihood.log_expected_power(f, covariance, y, jnp.float32(0.5)),
    ):
        assert value.dtype == jnp.float32
