"""The parts of federated Gaussian processes: kernels, pseudo-observations, row proximity, averaging, other models."""

import re
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import cavity
from cavity.algorithms import HierarchicalPVI, InducingAverage
from cavity.core import Data
from cavity.core.messages import Acknowledgement, ClientInput, Message
from cavity.core.shared_model import SharedModel
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.hierarchical import Hierarchical
from cavity.distributions.pseudo import CoupledObservations, PseudoObservations
from cavity.errors import CavityError, ProtocolError
from cavity.likelihoods import StudentT
from cavity.models.gp import kernels
from cavity.models.gp.factor_forms import Decoupled, OwnRows
from cavity.models.gp.row_proximity import row_proximity
from cavity.network.protocol import check_message
from cavity.schedules import Sequential
from cavity.solvers.annealed import annealed_adam
from cavity.solvers.shared_descent import SharedDescent
from tests import gp_problems as gp
from tests.contracts import likelihood as likelihood_contract
from tests.marks import thorough

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(5, 3)), RNG.normal(size=(4, 3))
SCALES = np.array([0.5, 1.0, 2.0])
R = np.sqrt((((A[:, None] - B) / SCALES) ** 2).sum(-1))
PERIODIC = np.exp(-0.7 * np.sin(np.pi * np.abs(A[:, None, 0] - B[:, 0]) / 1.5) ** 2)


@thorough
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (kernels.squared_exponential(3, SCALES, 1.3), 1.69 * np.exp(-0.5 * R**2)),
        (kernels.matern32(3, SCALES), (1 + np.sqrt(3) * R) * np.exp(-np.sqrt(3) * R)),
        (kernels.matern52(3, SCALES), (1 + np.sqrt(5) * R + 5 * R**2 / 3) * np.exp(-np.sqrt(5) * R)),
        (kernels.of_some(kernels.periodic(1.5, 0.7), [0]), PERIODIC),
        (
            0.5 * kernels.matern32(3, SCALES) * kernels.of_some(kernels.periodic(1.5, 0.7), [0])
            + kernels.squared_exponential(3, SCALES),
            0.5 * (1 + np.sqrt(3) * R) * np.exp(-np.sqrt(3) * R) * PERIODIC + np.exp(-0.5 * R**2),
        ),
    ],
    ids=["squared exponential", "matern32", "matern52", "periodic", "sum and product"],
)
def test_kernels_by_their_formulas(kernel, expected):
    np.testing.assert_allclose(kernel(jnp.asarray(A), jnp.asarray(B)), expected, rtol=1e-10)
    np.testing.assert_allclose(kernel(jnp.asarray(A)), np.diag(kernel(jnp.asarray(A), jnp.asarray(A))), rtol=1e-10)


def observations(seed, groups=1, full=False):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(groups, 3, 3))
    precision = root @ root.swapaxes(1, 2) if full else rng.uniform(0.5, 2, size=(groups, 3))
    return PseudoObservations(rng.normal(size=(groups, 3, 1)), rng.normal(size=(groups, 3)), precision)


@thorough
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_a_product_is_the_union_and_a_power_scales_the_precision(full):
    model = gp.fixed(np.linspace(-2, 2, 4)[:, None])
    inducing, _ = model.at(gp.NOTHING)
    seen = lambda factor: factor.seen(inducing.root, inducing.features)  # noqa: E731
    first, second = observations(1, full=full), observations(2, full=full)
    for mine, one, two in zip(seen(first * second), seen(first), seen(second), strict=True):
        np.testing.assert_allclose(mine, one + two, rtol=1e-10, atol=1e-12)
    for mine, one in zip(seen((first * second) / second), seen(first), strict=True):
        np.testing.assert_allclose(mine, one, rtol=1e-9, atol=1e-10)
    for mine, one in zip(seen(first**0.3), seen(first), strict=True):
        np.testing.assert_allclose(mine, 0.3 * one, rtol=1e-10)
    # by the equation: A' S^-1 A and A' S^-1 m, with A = K_VZ L^-T
    a = gp.kernel_matrix(first.inputs[0], np.asarray(inducing.inputs)) @ np.linalg.inv(np.asarray(inducing.root)).T
    inverse = first.precision[0] if full else np.diag(first.precision[0])
    np.testing.assert_allclose(seen(first)[0], a.T @ inverse @ a, rtol=1e-9)
    np.testing.assert_allclose(seen(first)[1], a.T @ first.shift[0], rtol=1e-9)


def test_halfway_to_another_factor():
    here, there = observations(1), observations(2)
    half = here.towards(there, 0.5)
    for mine, one, two in zip(jax.tree.leaves(half), jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(mine, (one + two) / 2)
    first = (here**0.0).towards(there, 0.5)  # from nothing: at its own inputs, half as sure
    np.testing.assert_array_equal(first.inputs, there.inputs)
    np.testing.assert_allclose(first.precision, there.precision / 2)
    np.testing.assert_allclose(here.outcomes, here.shift / here.precision)


def test_coupled_factors_are_gaussians_in_u():
    model = gp.fixed(np.linspace(-2, 2, 3)[:, None])
    inducing, _ = model.at(gp.NOTHING)
    root = np.asarray(inducing.root)
    factor = CoupledObservations(np.array([1.0, -2.0, 0.5]), np.diag([1.0, 2.0, 3.0]))
    precision, shift = factor.seen(inducing.root, inducing.features)
    np.testing.assert_allclose(precision, root.T @ np.diag([1.0, 2.0, 3.0]) @ root, rtol=1e-12)
    np.testing.assert_allclose(shift, root.T @ factor.shift, rtol=1e-12)
    np.testing.assert_allclose((factor * factor / factor).precision, factor.precision)


def test_how_near_pseudo_observations_come_to_rows():
    x, y = np.arange(5.0)[:, None], np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    inputs = np.array([[[0.0], [1.5], [9.0]]])
    precision = np.array([[2.0, 1.0, 0.0]])  # the last one is not in use
    found = row_proximity(PseudoObservations(inputs, precision * [0.0, 3.0, 7.0], precision), x, y)
    np.testing.assert_allclose(found.inputs, [0.0, 0.5])
    np.testing.assert_allclose(found.outcomes, np.array([0.0, 2.0]) / y.std())
    assert found.num_near == 1
    assert "2 pseudo-observations for 5 rows, 1 of them nearer" in str(found)


@thorough
def test_a_client_is_warned_before_it_sends():
    model = gp.fixed(np.linspace(-3, 3, 6)[:, None], Decoupled(6), jitter=1e-6)
    x, y = gp.rows(12)
    algorithm = HierarchicalPVI(model, solver=SharedDescent(optax.adam, num_steps=1))
    fit = cavity.run(algorithm, {"a": (x, y)}, rounds=1)
    remark = algorithm.remark_on(fit.server.entries["a"], fit.clients["a"])
    assert "6 pseudo-observations for 12 rows, 1 of them nearer to a row" in remark  # to a third row, not of its pair


@thorough
def test_a_union_is_sent_over_the_protocol():
    """What a client receives is longer than the prior; any other shape is refused."""
    model = gp.fixed(np.linspace(-3, 3, 6)[:, None], Decoupled(6), jitter=1e-6)
    x, y = gp.rows(24)
    algorithm = HierarchicalPVI(model, solver=SharedDescent(optax.adam, num_steps=1))
    fit = cavity.run(algorithm, {"a": (x[:12], y[:12]), "b": (x[12:], y[12:])}, rounds=1)
    message = Message("a", 1, 1, Acknowledgement(), ClientInput(fit.posterior, fit.server.entries["a"]))
    assert check_message(algorithm, message, "a") is message
    wide = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=1) if np.ndim(leaf) > 1 else leaf, fit.posterior)
    with pytest.raises(ProtocolError, match="the posterior has an array"):
        check_message(algorithm, replace(message, inputs=ClientInput(wide, fit.server.entries["a"])), "a")


@thorough
def test_averaging_moves_by_a_clients_share_of_the_rows():
    x, y = gp.rows(30)
    clients = {"small": (x[:10], y[:10]), "large": (x[10:], y[10:])}
    model = cavity.models.sparse_gp(1, num_inducing=5, form=OwnRows(20), learns_hyperparameters=False, seed=1)
    solver = SharedDescent(optax.adam, num_steps=20, point=True)
    algorithm = InducingAverage(model, 30, solver=solver)
    fit = cavity.run(algorithm, clients, schedule=Sequential(), rounds=1)
    alone = cavity.run(InducingAverage(model, 10, solver=solver), {"small": clients["small"]}, rounds=1)
    start, end = np.asarray(model.start), np.asarray(alone.posterior.shared.mean)
    assert np.abs(end - start).max() > 0.02
    after_small = start + (end - start) / 3
    moved = np.asarray(fit.posterior.shared.mean) - after_small
    assert 0.05 < np.abs(moved).max() <= 2 / 3 * 20 * 0.01 * 1.01  # 2/3 of at most 20 steps of Adam
    with pytest.raises(ProtocolError, match="no client may be called"):
        cavity.run(algorithm, {"(average)": clients["small"]})
    rebuilt = algorithm.server.entries.rebuild(fit.server.prior, list(fit.server.entries.values()))
    np.testing.assert_allclose(rebuilt.shared.mean, fit.posterior.shared.mean, atol=1e-9)
    with pytest.raises(CavityError, match="point=True"):
        InducingAverage(model, 30, solver=SharedDescent(optax.adam))


@thorough
def test_a_factor_is_fitted_before_phi_moves():
    """As many steps alone as `still_steps` says, and then as if the descent began there."""
    x, y = gp.rows(12)
    model = cavity.models.sparse_gp(1, num_inducing=5, form=Decoupled(6), learns_hyperparameters=False, seed=1)
    algorithm = InducingAverage(model, 12)
    data = Data((jnp.asarray(x), jnp.asarray(y)), jnp.ones(12), jnp.asarray(12))
    empty = algorithm.server.entries.initial()
    problem = algorithm.client.problem(
        ClientInput(algorithm.server.entries.rebuild(algorithm.prior, [empty]), empty), None, data
    )
    solver = SharedDescent(optax.adam, 0.01, num_steps=12, point=True, still_steps=10)
    start = state = solver.init(problem)
    step = eqx.filter_jit(solver.step)
    for i in range(10):
        state = step(jax.random.key(i), problem, state)
    np.testing.assert_array_equal(state.coordinates.mean, start.coordinates.mean)
    assert float(jnp.max(jnp.abs(state.coordinates.own.outcomes - start.coordinates.own.outcomes))) > 0.03
    moved = step(jax.random.key(10), problem, state)
    first = jnp.abs(moved.coordinates.mean - state.coordinates.mean)
    np.testing.assert_allclose(first, 0.01, rtol=1e-3)  # the first step of Adam, wherever there is a gradient


@thorough
def test_student_t_by_its_contract():
    likelihood = StudentT(0.7, degrees=5.0)
    f = jnp.asarray(RNG.normal(size=(5, 1)))
    y = RNG.normal(size=5)
    np.testing.assert_allclose(likelihood.log_prob(f, y), stats.t.logpdf(y, 5.0, f[:, 0], 0.7), rtol=1e-10)
    likelihood_contract.check_elementwise(likelihood, f, jnp.asarray(y))
    draws = likelihood.draw(jax.random.key(0), jnp.zeros((20_000, 1)))
    assert float(jnp.std(draws)) == pytest.approx(0.7 * np.sqrt(5 / 3), rel=0.05)
    with pytest.raises(CavityError, match="scale of a Student t must be positive"):
        StudentT(-0.7)
    with pytest.raises(CavityError, match="more than 1 degree"):
        StudentT(0.7, degrees=1.0)


class NormalMean(SharedModel):
    """A model without pseudo-observations: phi is a mean, rows are N(phi, 1). Its posterior is known."""

    prior: Hierarchical
    auxiliary: bool = eqx.field(static=True, default=False)

    start = property(lambda self: jnp.zeros(1))
    is_auxiliary = property(lambda self: jnp.array([self.auxiliary]))
    parameter_names = property(lambda self: ("mean",))

    def no_factor(self):
        return None

    def coordinates(self, conditional, data):
        return None

    def conditional(self, coordinates):
        return None

    def bound(self, phi, cavity, conditional, data):
        return -0.5 * jnp.sum(jnp.asarray(data.weight) * (data.batch - phi[0]) ** 2)

    def prepare(self, batch):
        return np.asarray(batch, float)


def _normal_means(auxiliary, alpha, num_steps):
    """Two clients' rows, the algorithm, and each client's exact factor: its likelihood to the power 1 / alpha."""
    prior = Hierarchical(DiagonalGaussian.from_moments(jnp.array([1.0]), jnp.array([4.0])))
    rng = np.random.default_rng(7)
    rows = {"a": rng.normal(size=6), "b": 2 + rng.normal(size=9)}
    solver = SharedDescent(annealed_adam(num_steps), 0.03, num_steps=num_steps)
    algorithm = HierarchicalPVI(NormalMean(prior, auxiliary), alpha=alpha, solver=solver)
    power = 1 / alpha if auxiliary else 1.0
    exact = {
        name: Hierarchical(DiagonalGaussian(jnp.array([power * y.sum()]), jnp.array([power * float(len(y))])))
        for name, y in rows.items()
    }
    return rows, algorithm, exact


WEIGHTS = pytest.mark.parametrize(("auxiliary", "alpha"), [(False, 0.1), (True, 1.0), (True, 0.25)])


@WEIGHTS
@thorough
def test_the_exact_posterior_of_shared_parameters_is_a_fixed_point(auxiliary, alpha):
    """At the exact factors the expected gradient of each client is zero; the bound is quadratic in phi, so that seven
    nodes of Gauss and Hermite give the expectation without error. Alpha weighs the KL of what is auxiliary alone."""
    rows, algorithm, exact = _normal_means(auxiliary, alpha, 10)
    posterior = algorithm.server.entries.rebuild(algorithm.prior, list(exact.values()))
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    for name, y in rows.items():
        data = Data(jnp.asarray(y), jnp.ones(len(y)), jnp.asarray(len(y)))
        problem = algorithm.client.problem(ClientInput(posterior, exact[name], None), None, data)
        np.testing.assert_allclose(
            problem.cavity.shared.precision, posterior.shared.precision - exact[name].shared.precision
        )

        def expected(coordinates, problem=problem, data=data):
            each = [algorithm.solver.objective(jnp.array([node]), problem, coordinates, data)[0] for node in nodes]
            return jnp.stack(each) @ (weights / weights.sum())

        at = algorithm.solver.init(problem).coordinates
        slope, scale = jax.grad(expected)(at), len(y)
        assert abs(float(slope.mean[0])) < 1e-9 * scale
        assert abs(float(slope.log_gain[0])) < 1e-9 * scale
        off = jax.grad(expected)(replace(at, mean=at.mean + 0.1))
        assert abs(float(off.mean[0])) > 0.01 * scale


@WEIGHTS
@thorough
def test_any_model_that_shares_variational_parameters(auxiliary, alpha):
    """From nothing, over two clients in turn, to the posterior of a mean; a noisy solver, so within its noise.

    A factor to a wrong power or counted twice would change the precision by at least 40 %."""
    rows, algorithm, exact = _normal_means(auxiliary, alpha, 1500)
    fit = cavity.run(algorithm, rows, schedule=Sequential(), rounds=2)
    posterior = algorithm.server.entries.rebuild(algorithm.prior, list(exact.values()))
    precision = float(posterior.shared.precision[0])
    assert float(fit.posterior.shared.precision[0]) == pytest.approx(precision, rel=0.15)
    assert float(fit.posterior.shared.mean[0]) == pytest.approx(
        float(posterior.shared.mean[0]), abs=0.5 / precision**0.5
    )


@thorough
def test_the_page_runs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "gaussian-processes.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(block.replace("rounds=2", "rounds=1"), "gaussian-processes.md", "exec"), names)
    assert np.isfinite(names["prediction"].f_mean).all()
