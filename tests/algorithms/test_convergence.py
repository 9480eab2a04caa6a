"""When SFVI and SFVI-Avg end by themselves, and what they say where they have not."""

from __future__ import annotations

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.algorithms.settling import MOVE, Settling
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.distributions.structured import MeanFieldGlobal
from tests.algorithms.test_sfvi import clients, exact_family, model_once
from tests.marks import thorough

BY_ITSELF = Settling(planned=4000, first_batch=10, num_batches=16, by_itself=True, decays=True)
BY_PLAN = Settling(planned=400, first_batch=10, num_batches=16, by_itself=False, decays=True)


@eqx.filter_jit
def _watched(settling, means, bounds):
    def one(watch, x):
        watch = settling.seen(watch, MeanFieldGlobal(x[0][None], jnp.zeros(1)), x[1])
        return watch, (settling.scale(watch), watch.settled)

    start = jax.tree.map(jnp.asarray, settling.init(MeanFieldGlobal(jnp.zeros(1), jnp.zeros(1))))
    return jax.lax.scan(one, start, (jnp.asarray(means), jnp.asarray(bounds)))


def watched(settling, means, bounds):
    """After a series of means (of sd 1) and bounds: the watch, and the scale of the step and `settled` at each."""
    watch, (scales, settled) = _watched(settling, means, bounds)
    return jax.tree.map(np.asarray, (watch, scales, settled))


def remark(settling, watch):
    return settling.remark(watch, MeanFieldGlobal(jnp.zeros(1), jnp.zeros(1)), "step", 100)


def noise(size, sd, seed=0):
    return sd * np.random.default_rng(seed).normal(size=size)


def test_a_series_at_rest_settles_and_its_steps_fall_to_nothing():
    watch, scales, settled = watched(BY_ITSELF, noise(600, 0.1), noise(600, 0.5, 1))
    ended = int(np.argmax(settled))
    assert 150 < ended < 400
    assert scales[0] == 1.0
    assert scales[ended] == 0.0
    fall = scales[: ended + 1][scales[: ended + 1] < 1]
    assert (np.diff(fall) < 0).all()
    assert len(fall) >= 50
    assert "converged: the bound and the posterior have settled after 600 steps" in remark(BY_ITSELF, watch)


def test_a_rising_bound_does_not_settle_and_its_slope_is_reported():
    """0.03 nats per step under noise of 0.2."""
    bounds = 0.03 * np.arange(2000) + noise(2000, 0.2)
    watch, scales, settled = watched(BY_ITSELF, noise(2000, 0.05, 1), bounds)
    assert not settled.any()
    assert (scales == 1).all()
    assert "not converged: the bound still rises by 3 nats per 100 steps; run more steps" in remark(BY_ITSELF, watch)


def test_a_moving_mean_does_not_settle_and_is_reported():
    """By 0.5 sd per 100 steps, at a bound that cannot show it."""
    watch, _, settled = watched(BY_ITSELF, 0.005 * np.arange(2000.0), noise(2000, 5.0))
    assert not settled.any()
    assert "the posterior still moves by 0.5 sd per 100 steps" in remark(BY_ITSELF, watch)


def test_noise_does_not_pass_for_rest():
    """Steps so noisy that nothing is known of their mean to a tenth of an sd."""
    assert not watched(BY_ITSELF, noise(600, 2.0), noise(600, 0.5, 1))[2].any()


def test_a_run_that_ends_elsewhere_climbs_on_with_shorter_steps():
    """At rest when it is judged, and then, while its steps fall, it goes away by ten times what is allowed."""
    means = noise(400, 0.05) + np.where(np.arange(400) < 160, 0.0, 10 * MOVE)
    _, scales, settled = watched(BY_ITSELF, means, noise(400, 0.1, 1))
    assert scales[318] < 0.05
    assert scales[330] == 0.25
    assert not settled.any()


def test_late_in_its_plan_the_steps_fall_and_it_has_not_converged():
    watch, scales, settled = watched(BY_ITSELF, 0.05 * np.arange(3999.0), noise(3999, 0.1))
    assert scales[2998] == 1.0
    assert scales[3998] < 1e-3 + 1 / 1000
    assert not settled.any()
    assert remark(BY_ITSELF, watch).startswith("not converged")


@pytest.mark.parametrize(("drift", "settles"), [(0.0, True), (0.01, False)])
def test_a_planned_run_is_judged_before_its_steps_are_small(drift, settles):
    """A cosine's last quarter moves by nothing, whatever it is far from."""
    means = drift * np.minimum(np.arange(400), 300) + noise(400, 0.05)
    _, scales, settled = watched(BY_PLAN, means, noise(400, 0.1, 1))
    assert (scales == 1).all()
    assert not settled[:-1].any()
    assert settled[-1] == settles


@lru_cache
def by_itself():
    return SFVI(model_once(), num_samples=1, step_size=0.1, initialise=False)


@thorough
def test_sfvi_ends_by_itself_at_the_exact_posterior():
    fit = cavity.run(by_itself(), clients(2))
    exact = exact_family()[0].gaussian
    assert fit.converged
    assert fit.stopped == "tolerance"
    assert 150 <= len(fit.history) <= 2000
    assert cavity.kl(fit.posterior.q.gaussian, exact) < 0.005  # nats: 0.1 sd
    assert "converged: the bound and the posterior have settled" in str(fit.summary())


@thorough
def test_after_ten_steps_it_has_not_converged_and_says_so():
    fit = cavity.run(by_itself(), clients(2), rounds=10, rounds_per_block=10)
    assert not fit.converged
    assert "not converged: 10 steps of at most 20000 are too few to judge; run more steps" in str(fit.summary())


@pytest.mark.slow
def test_a_run_that_is_resumed_while_its_steps_fall_is_the_one_that_was_not_interrupted(tmp_path):
    whole = cavity.run(by_itself(), clients(2))
    before = len(whole.history) - 50
    cavity.run(by_itself(), clients(2), rounds=before, directory=tmp_path)
    assert not cavity.load(tmp_path, algorithm=by_itself()).converged
    resumed = cavity.resume(tmp_path, clients(2), algorithm=by_itself())
    assert resumed.converged
    assert len(resumed.history) == len(whole.history)
    for one, other in zip(jax.tree.leaves(whole.server), jax.tree.leaves(resumed.server), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_sfvi_avg_ends_by_itself():
    algorithm = SFVIAvg(model_once(), total=14, local_steps=100, num_samples=1)
    fit = cavity.run(algorithm, clients(2))
    exact = exact_family()[0].gaussian
    assert fit.converged
    assert len(fit.history) < 50
    shift = np.asarray(fit.posterior.q.mean - exact.mean) / np.sqrt(np.asarray(exact.variance))
    assert np.abs(shift).max() < 0.15
    short = cavity.run(algorithm, clients(2), rounds=3)
    assert not short.converged
    assert "not converged: 3 rounds of at most 50" in str(short.summary())
