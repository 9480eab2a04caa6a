"""A likelihood that is not a sum over rows, as somebody outside writes it: Cox's partial likelihood.

    log PL = sum over deaths i of  eta_i - log sum over those at risk of exp(eta_j),     eta = x . theta

Every client is a stratum with a baseline hazard of its own, so that the pooled model is the stratified one. It is
computed here once more in plain numpy, with a loop over deaths.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import cavity
from cavity.core import Data, Model
from cavity.distributions import FullGaussian
from cavity.errors import CavityError, UnsuitableError
from cavity.evaluation.psis import log_likelihoods
from cavity.losses import Beta
from cavity.models.glm.regression import gaussian_prior
from cavity.simulation.stacks import buckets, device_mesh, stack_padded
from cavity.solvers import SGMCMC, Gradient, Laplace, PowerEP, SGDIterates, StochasticNaturalGradient
from tests.contracts.model import NUM_ROWS, check_model
from tests.marks import thorough

SIZES = {"york": 19, "leeds": 7, "hull": 33}
PRIOR_SCALE = 1.5


class Cox(Model):
    """Breslow's partial likelihood of rows (x, time, died)."""

    prior: FullGaussian

    @property
    def parameter_names(self):
        return ("treated", "age")

    def log_prob(self, theta, data):
        (x, time, died), weight = data.batch, jnp.asarray(data.weight)
        eta = x @ theta
        shift = jax.lax.stop_gradient(jnp.max(eta))
        at_risk = (time >= time[:, None]) @ (weight * jnp.exp(eta - shift))
        counted = weight * died > 0  # there may be no row at risk at the time of a row of weight 0
        each = eta - shift - jnp.log(jnp.where(counted, at_risk, 1.0))
        return jnp.sum(jnp.where(counted, weight * each, 0.0))

    def prepare(self, batch):
        x, time, died = (np.asarray(column, float) for column in batch)
        return x, time, died


def cox():
    return Cox(gaussian_prior(2, PRIOR_SCALE))


def clients(seed=0):
    rng, found = np.random.default_rng(seed), {}
    for k, (name, size) in enumerate(SIZES.items()):
        x = np.column_stack([rng.integers(0, 2, size), rng.normal(size=size)]).astype(float)
        time = np.ceil(10 * rng.exponential(np.exp(-x @ [0.8, -0.5] - 0.5 * k)))  # whole days: there are ties
        found[name] = (x, time, (rng.random(size) < 0.8).astype(float))
    return found


def by_hand(thetas, data):
    """Log PL of all strata at each theta [s, 2], death by death."""
    total = np.zeros(len(thetas))
    for x, time, died in data.values():
        eta = thetas @ x.T
        for i in np.flatnonzero(died):
            total += eta[:, i] - np.log(np.exp(eta[:, time >= time[i]]).sum(axis=1))
    return total


def as_data(columns):
    return Data(columns, np.ones(len(columns[1])), np.asarray(len(columns[1])))


def test_padding_permutation_and_weights_count_as_they_should():
    x, time, died = clients()["york"]
    check_model(cox(), jnp.array([0.4, -0.3]), as_data((x[:NUM_ROWS], time[:NUM_ROWS], died[:NUM_ROWS])))


def test_clients_of_unequal_sizes_in_one_stack_have_their_own_likelihood():
    theta, data = np.array([0.4, -0.3]), clients()
    stacked = stack_padded([as_data(columns) for columns in data.values()])
    assert stacked.weight.shape == (3, 33)
    found = jax.jit(jax.vmap(lambda rows: cox().log_prob(jnp.asarray(theta), rows)))(stacked)
    expected = [by_hand(theta[None], {name: columns})[0] for name, columns in data.items()]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def pooled_mode(data):
    """Mode and curvature of the stratified posterior, by an optimiser and central differences."""

    def objective(theta):
        return -by_hand(theta[None], data)[0] + 0.5 * np.sum(theta**2) / PRIOR_SCALE**2

    mode = minimize(objective, np.zeros(2), tol=1e-10).x
    steps, hessian = 1e-3 * np.eye(2), np.zeros((2, 2))
    for i, a in enumerate(steps):
        for j, b in enumerate(steps):
            corners = [objective(mode + s * a + t * b) * s * t for s in (1, -1) for t in (1, -1)]
            hessian[i, j] = sum(corners) / (4 * 1e-6)
    return mode, hessian


@thorough
def test_by_laplace_it_is_the_mode_of_the_pooled_stratified_model():
    data = clients()
    fit = cavity.run(cavity.PVI(cox(), solver=Laplace()), data, rounds=30, tolerance=1e-12)
    mode, hessian = pooled_mode(data)
    np.testing.assert_allclose(fit.posterior.mean, mode, atol=1e-5)
    np.testing.assert_allclose(fit.posterior.precision, hessian, rtol=1e-4)


def pooled_vi(data):
    """Mean and root of the Gaussian that minimises E[-log PL] + KL(q : prior), by Gauss-Hermite sums in numpy."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    weight = np.outer(weights, weights).ravel() / weights.sum() ** 2

    def unpack(numbers):
        root = np.diag(np.exp(numbers[2:4]))
        root[1, 0] = numbers[4]
        return numbers[:2], root

    def bound(numbers):
        mean, root = unpack(numbers)
        expected = weight @ by_hand(mean + grid @ root.T, data)
        squares = (np.sum(mean**2) + np.sum(root**2)) / PRIOR_SCALE**2
        return -expected + 0.5 * squares - np.log(np.diag(root)).sum()

    start = np.array([0.0, 0.0, -1.0, -1.0, 0.0])
    return unpack(minimize(bound, start, method="BFGS", options={"gtol": 1e-7}).x)


@thorough
def test_by_default_it_is_the_closest_gaussian_of_the_pooled_stratified_model():
    data = clients()
    assert len(buckets({name: as_data(columns) for name, columns in data.items()}, device_mesh())) == 1
    fit = cavity.run(cavity.PVI(cox()), data, rounds=20, tolerance=1e-10)
    mean, root = pooled_vi(data)
    sd = np.sqrt(np.diag(root @ root.T))
    np.testing.assert_allclose((fit.posterior.mean - mean) / sd, 0.0, atol=1e-4)
    np.testing.assert_allclose(fit.posterior.covariance, root @ root.T, rtol=1e-3, atol=1e-5)
    assert "treated" in str(fit.summary())


def test_importance_weights_see_no_padding():
    thetas, data = np.random.default_rng(1).normal(size=(4, 2)), clients()
    prepared = {name: as_data(columns) for name, columns in data.items()}
    found = log_likelihoods(cavity.PVI(cox()), jnp.asarray(thetas), prepared)
    for name, columns in data.items():
        np.testing.assert_allclose(found[name], by_hand(thetas, {name: columns}), rtol=1e-10)


REFUSED = {
    "mini-batches": (lambda: cavity.PVI(cox(), solver=Gradient(optax.adam, 0.1)), "batch_size=None"),
    "stochastic": (lambda: cavity.PVI(cox(), solver=StochasticNaturalGradient()), "batch_size=None"),
    "chains": (lambda: cavity.PVI(cox(), solver=SGMCMC(SGDIterates(0.1))), "batch_size=None"),
    "FedEP": (lambda: cavity.FedEP(cox()), "batch_size=None"),
    "rows' factors": (lambda: cavity.PVI(cox(), solver=PowerEP()), "use NaturalGradient, Laplace"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_single_rows_is_refused_by_name(name):
    make, remedy = REFUSED[name]
    with pytest.raises(UnsuitableError, match=f"the likelihood of Cox is not a sum over rows.*{remedy}"):
        make()


def test_losses_of_single_rows_are_refused_by_name():
    with pytest.raises(UnsuitableError, match="loss Beta needs .* Cox has none"):
        cavity.FedGVI(cox(), Beta(0.5))


def test_all_rows_at_once_are_allowed():
    cavity.PVI(cox(), solver=Gradient(optax.adam, 0.1, batch_size=None))


class OneNumberPerRow(Cox):
    """As models were written before the weighted dataset."""

    def log_prob(self, theta, data):
        return -0.5 * (data.batch[1] - theta[0]) ** 2


def test_one_number_per_row_is_refused_with_the_remedy():
    model = OneNumberPerRow(gaussian_prior(2, PRIOR_SCALE))
    with pytest.raises(CavityError, match=r"OneNumberPerRow.log_prob returns .* \(33,\).*implement row_log_prob"):
        cavity.run(cavity.PVI(model), clients(), rounds=1)
