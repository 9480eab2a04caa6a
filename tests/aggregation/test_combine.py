"""The server's posterior from prior and factors: argmin of E_q[-log factors] + D_s(q : prior), by other means."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from cavity.aggregation.combine import combine
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.divergences import KL, FisherRao, Renyi, ReverseKL, WeightedKL
from tests.contracts.distribution import assert_same
from tests.divergences.test_robust_divergences import fisher_rao_by_ratio, renyi_by_log_partitions
from tests.marks import thorough
from tests.scenarios import gaussian_kl

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def case(family, dimension, seed=0):
    """A prior, and the product of two clients' factors."""
    rng = np.random.default_rng(seed)

    def matrix(size):
        root = np.tril(0.5 * rng.normal(size=(dimension, dimension)), -1) + np.diag(rng.uniform(0.6, 1.5, dimension))
        return size * root @ root.T

    def member(precision):
        mean = rng.normal(size=dimension)
        if family is FullGaussian:
            return FullGaussian(precision @ mean, precision)
        diagonal = np.diag(precision)
        return (
            family(diagonal * mean, diagonal) if family is DiagonalGaussian else family(mean, np.asarray(diagonal[0]))
        )

    return member(matrix(1.0)), member(matrix(0.8)) * member(matrix(1.5))


def kl(q, p):
    return gaussian_kl(*(np.asarray(part) for part in (q.mean, q.covariance, p.mean, p.covariance)))


CASES = {
    "reverse KL": (ReverseKL(), lambda q, p: kl(p, q)),
    "Renyi 0.3": (Renyi(0.3), partial(renyi_by_log_partitions, 0.3)),
    "Renyi 0.8": (Renyi(0.8), partial(renyi_by_log_partitions, 0.8)),
    "Renyi 2.5": (Renyi(2.5), partial(renyi_by_log_partitions, 2.5)),
    "Fisher-Rao": (FisherRao(), fisher_rao_by_ratio),
}


class Plain:
    """A Gaussian in numpy, with what the reference formulas ask of it."""

    def __init__(self, mean, precision):
        self.mean, self.precision_matrix = mean, precision
        self.precision_mean, self.covariance = precision @ mean, np.linalg.inv(precision)
        self.variance = np.diag(self.covariance)


def by_scipy(divergence, prior, factors, *, mean_field):
    """Over the mean and a root of the precision, without derivatives; the result is polished once."""
    dimension = len(prior.mean)
    rows, columns = np.diag_indices(dimension) if mean_field else np.tril_indices(dimension)
    h, precision = np.asarray(factors.precision_mean), np.asarray(factors.precision_matrix)
    # a numpy copy, so that no formula waits for jax
    prior = Plain(np.asarray(prior.mean), np.asarray(prior.precision_matrix))

    def member(x):
        root = np.zeros((dimension, dimension))
        root[rows, columns] = x[dimension:]
        return Plain(x[:dimension], root @ root.T)

    def objective(x):
        q = member(x)
        if np.linalg.cond(q.precision_matrix) > 1e8:
            return 1e6
        expected = h @ q.mean - 0.5 * np.trace(precision @ (q.covariance + np.outer(q.mean, q.mean)))
        with np.errstate(invalid="ignore"):
            value = divergence(q, prior) - expected
        return value if np.isfinite(value) else 1e6

    start = np.concatenate([prior.mean, 1.1 * np.linalg.cholesky(prior.precision_matrix)[rows, columns]])
    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000}
    best = minimize(objective, start, method="Nelder-Mead", options=options)
    return member(minimize(objective, best.x, method="Nelder-Mead", options=options).x)


def assert_minimiser(name, prior, factors, combine=combine):
    divergence, formula = CASES[name]
    got = combine(divergence, prior, factors)
    assert type(got) is type(prior)
    expected = by_scipy(formula, prior, factors, mean_field=not isinstance(prior, FullGaussian))
    np.testing.assert_allclose(got.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.precision_matrix, expected.precision_matrix, rtol=1e-5, atol=1e-6)


@thorough
def test_on_a_line_inside_a_compiled_program():
    """As a block of rounds calls it."""
    prior, factors = (jax.tree.map(jnp.asarray, each) for each in case(DiagonalGaussian, 1))
    assert_minimiser("Renyi 0.3", prior, factors, eqx.filter_jit(combine))


@thorough
@pytest.mark.parametrize("name", ["reverse KL", "Renyi 0.8", "Renyi 2.5"])
def test_in_a_plane(name):
    """With correlations."""
    assert_minimiser(name, *case(FullGaussian, 2))


def test_fisher_rao_in_a_plane():
    """Where the coordinates do not separate."""
    assert_minimiser("Fisher-Rao", *case(DiagonalGaussian, 2))


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian, IsotropicGaussian], ids=lambda f: f.__name__)
def test_multiples_of_kl_are_powers(family):
    prior, factors = case(family, 3)
    assert_same(combine(KL(), prior, factors), prior * factors, rtol=1e-14)
    for w in (0.3, 2.0):
        assert_same(combine(WeightedKL(w), prior, factors), prior * factors**w, rtol=1e-14)


@thorough
def test_renyi_of_one_is_the_product():
    prior, factors = case(FullGaussian, 2)
    assert_same(combine(Renyi(1.0), prior, factors), prior * factors, rtol=1e-7)


@thorough
def test_unit_factors_leave_the_prior():
    prior, factors = case(FullGaussian, 2)
    for name in ("reverse KL", "Renyi 0.8", "Renyi 2.5"):
        assert_same(combine(CASES[name][0], prior, factors**0), prior, rtol=1e-7)


@thorough
def test_improper_factors():
    """A narrow q pays for its mean with the prior's precision / alpha: so much may the factors take away."""
    prior, factors = case(FullGaussian, 2)
    factors = factors**0.01 / prior**0.3
    assert not bool(factors.is_proper)
    assert_minimiser("Renyi 2.5", prior, factors)


@thorough
def test_in_double_precision_whatever_the_clients_compute_in():
    prior, factors = case(FullGaussian, 2)
    double = combine(ReverseKL(), prior, factors)
    with jax.enable_x64(False):
        single = combine(ReverseKL(), prior, factors)
    assert_same(single, double, rtol=1e-12)
    for leaf in jax.tree.leaves(single):
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == np.float64


@thorough
@pytest.mark.parametrize("divergence", [ReverseKL(), Renyi(1.5)], ids=["reverse KL", "Renyi 1.5"])
def test_columns_in_any_unit(divergence):
    """The same problem with every coordinate in another unit has the same answer in those units."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    prior = FullGaussian(np.zeros(6), np.eye(6))
    factors = FullGaussian(1e3 * rng.normal(size=6), 1e3 * (root @ root.T + np.eye(6)))
    scale = 10.0 ** np.arange(-2, 4)

    def in_units(q):  # of scale * theta
        return FullGaussian(q.precision_mean / scale, q.precision / np.outer(scale, scale))

    plain, scaled = combine(divergence, prior, factors), combine(divergence, in_units(prior), in_units(factors))
    assert bool(plain.is_proper)
    np.testing.assert_allclose(scaled.mean / scale, plain.mean, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(scaled.variance / scale**2, plain.variance, rtol=1e-5)


def test_a_power_of_the_factors_stays_in_double_precision():
    with jax.enable_x64(False):
        found = combine(WeightedKL(3.0), FullGaussian(np.zeros(2), np.eye(2)), FullGaussian(np.ones(2), np.eye(2)))
    assert found.precision.dtype == np.float64
    np.testing.assert_allclose(found.precision, 4 * np.eye(2), rtol=1e-6)  # w itself is a single-precision leaf
