"""Exact tilted moments: against numpy, and what EP does with them between two Gaussian clients."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.aggregation import Fixed
from cavity.algorithms.cavities import WholePosterior
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.divergences import KL, Renyi, WeightedKL
from cavity.errors import CavityError, UnsuitableError
from cavity.losses import Beta, NegativeLogLikelihood, Tempered
from cavity.models import BernoulliShare, linear_regression, logistic_regression, normal_location
from cavity.solvers import MomentMatching
from tests.contracts import solver as contract
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

FAMILIES = [DiagonalGaussian, IsotropicGaussian, FullGaussian]
COVARIANCE = np.array([[1.0, 0.7], [0.7, 2.0]])
ROWS = np.random.default_rng(5).normal(size=(9, 2)) @ np.linalg.cholesky(COVARIANCE).T + [1.0, -2.0]
CLIENTS = {"leeds": ROWS[:3], "york": ROWS[3:]}


def test_contract():
    contract.check(MomentMatching(), FullGaussian)


def test_numbers_do_not_recompile():
    contract.check_no_recompilation(*[MomentMatching(c) for c in (0.5, 1.0, 2.0)])


def regression_problem(family, **changes):
    """Rows of a linear regression; an isotropic cavity, which is in every family."""
    shape = {FullGaussian: 0.5 * jnp.eye(3), DiagonalGaussian: jnp.full(3, 0.5), IsotropicGaussian: jnp.array(0.5)}
    this = contract.problem(FullGaussian, contract.as_data(*contract.rows()), 0.5)
    cavity_ = family(jnp.full(3, 0.15), shape[family])
    model = replace(this.model, prior=cavity_)
    return replace(this, model=model, cavity=cavity_, start=cavity_, **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gets_the_moments_of_cavity_times_likelihood(family):
    this = regression_problem(family)
    mean, precision = contract.known_answer(this)
    covariance = np.linalg.inv(precision)
    tilted = contract.solved(MomentMatching(), this).tilted
    assert isinstance(tilted, family)
    np.testing.assert_allclose(tilted.mean, mean, rtol=1e-11)
    expected = {
        FullGaussian: covariance,
        DiagonalGaussian: np.diag(np.diag(covariance)),
        IsotropicGaussian: np.trace(covariance) / 3 * np.eye(3),
    }
    np.testing.assert_allclose(tilted.covariance, expected[family], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_identity_has_the_exact_mean_and_its_own_precision(family):
    this = regression_problem(family)
    mean, _ = contract.known_answer(this)
    tilted = contract.solved(MomentMatching(0.4), this).tilted
    np.testing.assert_allclose(tilted.mean, mean, rtol=1e-11)
    np.testing.assert_allclose(tilted.precision_matrix, (0.5 + 0.4 * contract.NUM_ROWS) * np.eye(3), rtol=1e-12)


@pytest.mark.parametrize("solver", [MomentMatching(), MomentMatching(0.4)], ids=["moments", "identity"])
def test_powers_of_the_likelihood_are_weights_of_rows(solver):
    plain = regression_problem(DiagonalGaussian)
    doubled = replace(plain.data, weight=2.0 * plain.data.weight)
    expected = contract.solved(solver, replace(plain, data=doubled)).tilted
    for loss, divergence in ((Tempered(2.0), KL()), (NegativeLogLikelihood(), WeightedKL(2.0))):
        tilted = contract.solved(solver, replace(plain, loss=loss, divergence=divergence)).tilted
        np.testing.assert_allclose(tilted.mean, expected.mean, rtol=1e-12)
        np.testing.assert_allclose(tilted.precision, expected.precision, rtol=1e-12)


def test_what_it_refuses():
    beta_prior = cavity.distributions.Beta(jnp.asarray(1.0), jnp.asarray(1.0))
    for model in (logistic_regression(2), linear_regression(2), BernoulliShare(beta_prior)):
        with pytest.raises(UnsuitableError, match="Gaussian in theta.*use PowerEP"):
            cavity.PVI(model, solver=MomentMatching())
    model = linear_regression(2, noise_sd=1.0)
    for loss, divergence in ((Beta(0.5), KL()), (NegativeLogLikelihood(), Renyi(1.5))):
        with pytest.raises(UnsuitableError, match="moment matching needs"):
            cavity.FedGVI(model, loss, divergence, solver=MomentMatching())
    with pytest.raises(CavityError, match="must be positive, not 0"):
        MomentMatching(0.0)


# two Gaussian clients with precisions P_k and modes mu_k


def gaussian_client(mean, covariance):
    """Two rows of a regression with unit noise whose likelihood is N(theta; mean, covariance)."""
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T
    return root, root @ mean


MEANS = np.array([[1.0, 0.0], [-1.0, 0.5]])
COVARIANCES = np.array([[[1.0, 0.9], [0.9, 1.2]], [[2.0, -0.6], [-0.6, 0.4]]])
PAIR = {name: gaussian_client(m, s) for name, m, s in zip(("a", "b"), MEANS, COVARIANCES, strict=True)}
PRECISIONS = np.linalg.inv(COVARIANCES)
POOLED_MEAN = np.linalg.solve(PRECISIONS.sum(0), np.einsum("kde,ke->d", PRECISIONS, MEANS))
FLAT = {
    FullGaussian: FullGaussian(np.zeros(2), np.zeros((2, 2))),
    DiagonalGaussian: DiagonalGaussian(np.zeros(2), np.zeros(2)),
}


def pair_run(family, rounds, solver=None, **parts):
    model = linear_regression(2, noise_sd=1.0, intercept=False, prior=FLAT[family])
    algorithm = cavity.PVI(model, solver=solver or MomentMatching(), damping=Fixed(1.0), **parts)
    return cavity.run(algorithm, PAIR, rounds=rounds, tolerance=0.0)


def test_full_covariance_is_exact_after_one_exchange():
    q = pair_run(FullGaussian, 1).posterior
    np.testing.assert_allclose(q.precision, PRECISIONS.sum(0), rtol=1e-12)
    np.testing.assert_allclose(q.mean, POOLED_MEAN, rtol=1e-12)


@thorough
def test_mean_field_ends_at_the_pooled_mean_and_fedpa_does_not():
    fit = pair_run(DiagonalGaussian, 100)
    np.testing.assert_allclose(fit.posterior.mean, POOLED_MEAN, rtol=1e-12)
    # the variances of EP's fixed point: those of factor_k with the other's likelihood, for both k
    for own, other in ((0, "b"), (1, "a")):
        tilted = np.linalg.inv(PRECISIONS[own] + np.diag(fit.server.entries[other].precision))
        np.testing.assert_allclose(fit.posterior.variance, np.diag(tilted), rtol=1e-9)
    one = pair_run(DiagonalGaussian, 1, removed=WholePosterior()).posterior
    assert np.linalg.norm(np.asarray(one.mean) - POOLED_MEAN) > 0.1


def test_fedpa_is_the_first_round_of_ep_from_a_flat_start():
    ep, fedpa = pair_run(DiagonalGaussian, 1), pair_run(DiagonalGaussian, 1, removed=WholePosterior())
    for name in PAIR:
        assert fedpa.server.entries[name] is not ep.server.entries[name]
    np.testing.assert_allclose(fedpa.posterior.precision, ep.posterior.precision, rtol=1e-14)
    np.testing.assert_allclose(fedpa.posterior.precision_mean, ep.posterior.precision_mean, rtol=1e-14)
    weights = 1 / np.diagonal(COVARIANCES, axis1=1, axis2=2)
    np.testing.assert_allclose(fedpa.posterior.mean, (weights * MEANS).sum(0) / weights.sum(0), rtol=1e-12)
    # and only the first: EP changes further, FedPA does not
    stays = pair_run(DiagonalGaussian, 3, removed=WholePosterior()).posterior
    np.testing.assert_allclose(stays.mean, fedpa.posterior.mean, rtol=1e-12)
    assert np.linalg.norm(np.asarray(pair_run(DiagonalGaussian, 2).posterior.mean) - fedpa.posterior.mean) > 0.01


def test_scaled_identity_starts_at_the_average_and_ends_at_the_pooled_mean():
    first = pair_run(DiagonalGaussian, 1, MomentMatching(1.0)).posterior
    np.testing.assert_allclose(first.mean, MEANS.mean(0), atol=1e-15)
    end = pair_run(DiagonalGaussian, 100, MomentMatching(1.0)).posterior
    np.testing.assert_allclose(end.mean, POOLED_MEAN, rtol=1e-9)
    np.testing.assert_allclose(end.precision, 4.0, rtol=1e-12)  # two clients of two rows


def test_scaled_identity_converges_as_derived():
    """The error of h goes through +- the root of the largest eigenvalue of K_1 K_2, K = (c - P) (c + P)^-1."""
    c = 2.0
    cayley = [(c * np.eye(2) - p) @ np.linalg.inv(c * np.eye(2) + p) for p in PRECISIONS]
    rate = np.abs(np.linalg.eigvals(cayley[0] @ cayley[1])).max()  # of two rounds
    errors = [
        np.linalg.norm(np.asarray(pair_run(DiagonalGaussian, rounds, MomentMatching(1.0)).posterior.mean) - POOLED_MEAN)
        for rounds in (5, 35)
    ]
    np.testing.assert_allclose((errors[1] / errors[0]) ** (1 / 15), rate, rtol=0.03)


def test_rows_of_a_location_with_correlated_noise():
    """EP with the mean field, from a proper prior: each tilted distribution has the posterior's moments at the end."""
    model = normal_location(2, noise_covariance=COVARIANCE, covariance=DiagonalGaussian, prior_scale=3.0)
    fit = cavity.run(cavity.PVI(model, solver=MomentMatching()), CLIENTS, tolerance=1e-22)
    precision = np.linalg.inv(COVARIANCE)
    pooled = np.linalg.solve(9 * precision + np.eye(2) / 9, precision @ ROWS.sum(0))
    np.testing.assert_allclose(fit.posterior.mean, pooled, rtol=1e-9)
    for name, rows in CLIENTS.items():
        rest = fit.posterior / fit.server.entries[name]
        tilted = np.linalg.inv(len(rows) * precision + np.diag(rest.precision))
        np.testing.assert_allclose(fit.posterior.variance, np.diag(tilted), rtol=1e-9)
