"""SFVI-Avg: one client is plain variational inference, scaling, re-centring, and what the printed algorithm does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.aggregation.barycentre import full_barycentre
from cavity.algorithms.bound import Globals
from cavity.algorithms.sfvi_avg import LocalFitState, SFVIAvg, barycentre
from cavity.core.messages import ClientInput
from cavity.distributions.structured import DenseGlobal, LocalGaussian, LowRankGlobal, MeanFieldGlobal
from cavity.errors import CavityError
from tests.algorithms.test_sfvi import clients, exact_family, model_once, rows


def averaged(num_clients, rounds=4, **options):
    algorithm = SFVIAvg(
        model_once(),
        total=14,
        num_rounds=rounds,
        local_steps=800,
        step_size=0.05,
        num_samples=1,
        initialise=False,
        **options,
    )
    return cavity.run(algorithm, clients(num_clients), rounds=rounds, tolerance=0.0)


@pytest.mark.slow
def test_one_client_is_plain_variational_inference():
    fit = averaged(1)
    q, local = exact_family()
    assert cavity.kl(fit.posterior.q.gaussian, q.gaussian) < 1e-4
    own = fit.client_states["client0"].pending.local.q
    np.testing.assert_allclose(own.mean, local.mean, atol=0.02)
    np.testing.assert_allclose(own.log_scale, local.log_scale, atol=0.05)


@pytest.mark.slow
def test_scaling_both_densities_keeps_local_posteriors_as_wide_as_they_are():
    """With 7 clients the printed form makes them about 1 / sqrt(7) as wide (the posterior's power of seven)."""
    right, printed = averaged(7), averaged(7, as_printed=True)
    exact = np.exp(np.asarray(exact_family()[1].log_scale)).mean()

    def width(fit):
        return np.mean([np.exp(state.pending.local.q.log_scale).mean() for state in fit.client_states.values()])

    assert width(right) == pytest.approx(exact, rel=0.1)
    assert width(printed) == pytest.approx(exact / np.sqrt(7), rel=0.15)
    q, _ = exact_family()
    spread = np.sqrt(np.asarray(q.gaussian.variance))
    assert np.abs((np.asarray(right.posterior.q.mean) - np.asarray(q.mean)) / spread).max() < 1.5


def test_a_new_centre_leaves_the_density_where_it_was():
    algorithm = SFVIAvg(model_once(), total=14)
    data = algorithm.model.prepare(rows())
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
    kept = LocalFitState(LocalGaussian(make(14, 1), make(14, 1), make(14, 1, 2)), make(2))
    start = algorithm.prior.q
    moved = Globals(DenseGlobal(make(2), start.log_scale, start.below), None)
    exchange = algorithm.server.exchange(np.uint32(0), np.uint32(3), algorithm.server.initial_state(1))
    problem = algorithm.client.problem(ClientInput(moved, None, exchange), kept, data)
    z_global, z_local = make(2), make(14, 1)
    before = kept.q.log_prob(z_local, z_global - kept.centre)
    after = problem.start.own.q.log_prob(z_local, z_global - moved.q.mean)
    np.testing.assert_allclose(after, before, rtol=1e-10)
    assert int(problem.start.own.ascent.count) == 3 * 1000


def test_the_server_takes_the_barycentre():
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(0.4 * rng.normal(size=shape))  # noqa: E731
    several = [DenseGlobal(make(4), make(4), jnp.tril(make(4, 4), -1)) for _ in range(3)]
    dense = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    mean, root = full_barycentre(dense.mean, jax.vmap(lambda q: q.root)(dense))
    found = barycentre(dense)
    np.testing.assert_allclose(found.root @ found.root.T, root @ root.T, rtol=1e-9)
    np.testing.assert_allclose(found.mean, mean)
    several = [MeanFieldGlobal(make(4), jnp.full(4, jnp.log(scale))) for scale in (1.0, 2.0, 6.0)]
    diagonal = barycentre(jax.tree.map(lambda *leaves: jnp.stack(leaves), *several))
    np.testing.assert_allclose(np.exp(diagonal.log_scale), 3.0)


def test_what_cannot_be_averaged_is_refused():
    def low_rank(mean, scale):
        return LowRankGlobal(mean, jnp.log(scale), jnp.zeros((len(mean), 1)))

    with pytest.raises(CavityError, match="barycentre"):
        SFVIAvg(model_once(), total=14, covariance=low_rank)
    with pytest.raises(CavityError, match="total number"):
        SFVIAvg(model_once(), total=0)
    with pytest.raises(CavityError, match="local_steps"):
        SFVIAvg(model_once(), total=14, local_steps=0)
