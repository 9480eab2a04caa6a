"""Student t priors, priors in other units, and blocks of different priors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cavity.errors import CavityError
from cavity.models import Horseshoe, Laplace, StudentTPrior, logistic_regression, with_shrinkage_prior
from cavity.models.glm.coefficient_priors import InUnits, PriorBlocks

pytestmark = pytest.mark.usefixtures("quick_to_compile")
RNG = np.random.default_rng(0)


def log_half_cauchy(log_value):
    return stats.halfcauchy.logpdf(np.exp(log_value)) + log_value


def blocks(theta):
    """Slopes 0 and 2 have a t prior with scales 0.5 and 2, slope 1 a horseshoe with the scale 3; psi is last."""
    beta, local, tau = theta[..., :3], theta[..., 3], theta[..., 4]
    found = stats.t(4, scale=0.5).logpdf(beta[..., 0]) + stats.t(4, scale=2.0).logpdf(beta[..., 2])
    found = found + stats.norm(0, 3.0 * np.exp(local + tau)).logpdf(beta[..., 1])
    return found + log_half_cauchy(local) + log_half_cauchy(tau)


CASES = {
    "student t": (StudentTPrior(0.7, 3.0), lambda beta: stats.t(3, scale=0.7).logpdf(beta).sum(-1), 2),
    "units": (
        InUnits(Laplace(0.7), [2.0, 0.1]),
        lambda beta: stats.laplace(scale=0.7 * np.array([2.0, 0.1])).logpdf(beta).sum(-1),
        2,
    ),
    "blocks": (
        PriorBlocks(
            (InUnits(StudentTPrior(1.0, 4.0), [0.5, 2.0]), InUnits(Horseshoe(1.0), [3.0])),
            ((0, 2), (1,)),
        ),
        blocks,
        5,
    ),
}
case_of = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@case_of
def test_densities_are_those_of_scipy(case):
    prior, expected, size = case
    theta = np.random.default_rng(0).normal(size=(20, size))
    np.testing.assert_allclose(jax.vmap(prior.log_prob)(jnp.asarray(theta)), expected(theta), rtol=1e-9)


@case_of
def test_expectations_are_means_over_draws(case):
    prior, log_density, size = case
    rng = np.random.default_rng(1)
    root = np.tril(0.3 * rng.normal(size=(size, size)), -1) + 0.4 * np.eye(size)
    mean = 0.5 * rng.normal(size=size)
    values = log_density(mean + rng.normal(size=(200_000, size)) @ root.T)
    found = prior.expected_log_prob(jnp.asarray(mean), jnp.asarray(root @ root.T))
    assert float(found) == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(len(values)))


@case_of
def test_a_fit_starts_with_positive_widths(case):
    prior, _, size = case
    num = {2: 2, 5: 3}[size]
    mean, sd = prior.width(num)
    assert mean.shape == sd.shape == (size,)
    assert (np.asarray(sd) > 0).all()
    assert len(prior.own_names([f"x{i}" for i in range(num)])) == size - num


def test_names_of_blocks():
    prior, *_ = CASES["blocks"]
    assert prior.own_names(["a", "b", "c"]) == ("log_local[b]", "log_tau")


def test_some_slopes_may_keep_their_normal_prior():
    model = logistic_regression(["dose", "age", "sex"], prior_scale=[10.0, 1.0, 2.0, 3.0])
    found = with_shrinkage_prior(model, Laplace(0.5), ["age"])
    sd = np.sqrt(np.asarray(found.prior.variance))
    np.testing.assert_allclose(sd, [10.0, 1.0, 0.5 * np.sqrt(2.0), 3.0])
    with pytest.raises(CavityError, match="no slope 'weight'; the slopes are dose, age, sex"):
        with_shrinkage_prior(model, Laplace(0.5), ["weight"])
