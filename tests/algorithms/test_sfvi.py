"""SFVI against closed forms: gradients, partition, blocks, what is sent, what is refused."""

from __future__ import annotations

import itertools
from functools import lru_cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import cavity
from cavity.algorithms.bound import Globals, client_gradient, server_gradient
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.structured import dense_family
from cavity.core.messages import ClientInput
from cavity.core.random import normal_of
from cavity.distributions.full import FullGaussian
from cavity.distributions.structured import DenseGlobal, LocalGaussian, LowRankGlobal, MeanFieldGlobal
from cavity.errors import CavityError, DataError
from cavity.io import serialization
from cavity.models.numpyro.from_numpyro import numpyro_model
from cavity.schedules import SampledCount
from cavity.simulation.drive import run_client
from tests.compilations import compilations
from tests.contracts.faults import check_survives_faults
from tests.marks import exhaustive, thorough

NOISE, SPREAD, WIDE = 0.7, 0.5, 3.0


def intercepts(group, x, y, num_groups):
    """A random intercept per group, variances known: everything is Gaussian."""
    level = numpyro.sample("level", dist.Normal(0.0, WIDE))
    slope = numpyro.sample("slope", dist.Normal(0.0, WIDE))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(level, SPREAD))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(own[group] + slope * x, NOISE), obs=y)


def mixed(group, x, y, num_groups):
    """The same with variances to be found, and counts as outcomes."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * x + level + scale * own[group])), obs=y)


@lru_cache
def rows(num_rows=84, num_groups=14, seed=0):
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.arange(num_groups), rng.integers(0, num_groups, num_rows - num_groups)])
    x = rng.normal(size=num_rows)
    y = rng.normal(0.4, SPREAD, num_groups)[group] + 0.8 * x + rng.normal(0, NOISE, num_rows)
    return {"group": np.array([f"g{g}" for g in group]), "x": x, "y": y}


def clients(num_clients, data=None):
    data = rows() if data is None else data
    names = list(dict.fromkeys(data["group"]))
    home = np.array([names.index(g) % num_clients for g in data["group"]])
    return {f"client{j}": {name: column[home == j] for name, column in data.items()} for j in range(num_clients)}


def model_of(function=intercepts, data=None):
    return numpyro_model(function, rows() if data is None else data, unit="group", num_units="num_groups")


def exact_posterior():
    """Precision and mean of (level, slope, own_1, ..., own_14) by hand."""
    data = rows()
    names = list(dict.fromkeys(data["group"]))
    place = np.array([names.index(g) for g in data["group"]])
    size = 2 + len(names)
    precision = np.diag([1 / WIDE**2, 1 / WIDE**2] + [0.0] * len(names))
    pull = np.zeros(size)
    for u in range(len(names)):
        contrast = np.zeros(size)
        contrast[0], contrast[2 + u] = -1.0, 1.0
        precision += np.outer(contrast, contrast) / SPREAD**2
    for p, x, y in zip(place, data["x"], data["y"], strict=True):
        design = np.zeros(size)
        design[1], design[2 + p] = x, 1.0
        precision += np.outer(design, design) / NOISE**2
        pull += design * y / NOISE**2
    return np.linalg.solve(precision, pull), precision


def exact_family():
    """The exact posterior as a structured Gaussian: q(Z_G) and q(Z_u | Z_G)."""
    mean, precision = exact_posterior()
    covariance = np.linalg.inv(precision)
    root = np.linalg.cholesky(covariance[:2, :2])
    scale = np.diagonal(root)
    q = DenseGlobal(jnp.asarray(mean[:2]), jnp.log(jnp.asarray(scale)), jnp.asarray(np.tril(root / scale[:, None], -1)))
    own = precision[2:, 2:]
    assert np.abs(own - np.diag(np.diagonal(own))).max() == 0.0  # units are independent given Z_G
    coupling = -precision[2:, :2] / np.diagonal(own)[:, None]
    local = LocalGaussian(
        jnp.asarray(mean[2:, None]),
        jnp.asarray(-0.5 * np.log(np.diagonal(own))[:, None]),
        jnp.asarray(coupling[:, None]),
    )
    return q, local


def log_evidence():
    data = rows()
    same = data["group"][:, None] == data["group"][None]
    covariance = WIDE**2 * (1 + np.outer(data["x"], data["x"])) + SPREAD**2 * same + NOISE**2 * np.eye(len(data["x"]))
    y = data["y"]
    return -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1])


@pytest.mark.parametrize("num_samples", [1, 5])
@thorough
def test_at_the_exact_posterior_every_gradient_vanishes_and_the_bound_is_the_evidence(num_samples):
    """Sticking the landing: at the optimum there is no noise, so a wrong term cannot hide."""
    model, (q, local) = model_of(), exact_family()
    data = model.prepare(rows())
    key = jax.random.key(1)
    noise = jax.random.normal(key, (3, 2))
    own_noise = jax.random.normal(jax.random.fold_in(key, 1), (3, num_samples, 14, 1))
    shared = Globals(q, None)
    *client, own = client_gradient(model, shared, local, noise, own_noise, data, key)
    bound, total = jax.tree.map(jnp.add, tuple(client), server_gradient(model, shared, noise))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves((total, own))) < 1e-9
    assert float(bound) == pytest.approx(log_evidence(), abs=1e-9)
    # and each part alone does not vanish, so that the sum is a cancellation
    assert float(jnp.abs(client[1].q.mean).max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", [1, 3])
def test_gradients_are_those_of_the_expected_bound(num_samples):
    """Away from the optimum, against plain reparameterised gradients of the bound: equal on average."""
    data = {name: column[:30] for name, column in rows().items()}
    model = model_of(mixed, data | {"y": np.abs(np.round(data["y"])).astype(int)})
    prepared = model.prepare(data | {"y": np.abs(np.round(data["y"])).astype(int)})
    num_units = len(prepared.units.weight)
    rng = np.random.default_rng(1)
    below = jnp.asarray(np.tril(rng.normal(size=(2, 2)), -1))
    q = DenseGlobal(jnp.asarray([0.1, -0.4]), jnp.log(jnp.asarray([0.3, 0.2])), below)
    local = LocalGaussian(
        jnp.asarray(0.3 * rng.normal(size=(num_units, 1))),
        jnp.asarray(-0.3 + 0.1 * rng.normal(size=(num_units, 1))),
        jnp.asarray(0.5 * rng.normal(size=(num_units, 1, 2))),
        widening=jnp.asarray(0.3 * rng.normal(size=(num_units, 1, 2))),
    )

    def bound(q, local, noise, own_noise):
        z = q.draw(noise)
        z_local = local.draw(z - q.mean, own_noise)
        joint = jax.vmap(lambda zl: model.log_joint(None, z, zl, prepared, jax.random.key(0)))(z_local)
        log_w = joint - local.log_prob(z_local, z - q.mean)
        return jnp.sum(jax.scipy.special.logsumexp(log_w, axis=0) - jnp.log(num_samples))

    @jax.jit
    def both(key):
        one, two = jax.random.split(key)
        noise, own_noise = jax.random.normal(one, (2,)), jax.random.normal(two, (num_samples, num_units, 1))
        plain = jax.grad(bound, argnums=(0, 1))(q, local, noise, own_noise)
        _, ours, own = client_gradient(
            model, Globals(q, None), local, noise[None], own_noise[None], prepared, jax.random.key(0)
        )
        return jax.flatten_util.ravel_pytree((ours.q, own))[0] - jax.flatten_util.ravel_pytree(plain)[0]

    gaps = np.asarray(jax.lax.map(both, jax.random.split(jax.random.key(2), 10_000), batch_size=200))
    error = gaps.std(axis=0) / np.sqrt(len(gaps))
    differs = error > 1e-12  # some parts are the same numbers but for rounding
    assert np.abs(gaps[:, ~differs]).max() < 1e-9
    assert np.abs(gaps.mean(axis=0)[differs] / error[differs]).max() < 4.5
    assert differs.sum() > len(error) / 2  # the two estimates are not the same program


@lru_cache
def fitted(num_clients, num_steps=3000):
    algorithm = SFVI(model_of(), num_steps=num_steps, step_size=0.05, num_samples=1, initialise=False)
    return cavity.run(algorithm, clients(num_clients), rounds=num_steps, tolerance=0.0, rounds_per_block=1000)


@thorough
def test_reaches_the_exact_posterior():
    fit = fitted(3)
    q, local = exact_family()
    assert cavity.kl(fit.posterior.q.gaussian, q.gaussian) < 1e-6
    assert fit.history[-1]["free_energy"] == pytest.approx(log_evidence(), abs=1e-5)
    names = list(dict.fromkeys(rows()["group"]))
    for j, (client, data) in enumerate(clients(3).items()):
        own = fit.client_states[client].local.q
        mine = [names.index(g) for g in dict.fromkeys(data["group"])]
        assert own.mean.shape == (len(mine), 1)  # without the padding
        np.testing.assert_allclose(own.mean, local.mean[np.array(mine)], atol=1e-3, err_msg=str(j))
        np.testing.assert_allclose(own.coupling, local.coupling[np.array(mine)], atol=1e-2)
        np.testing.assert_allclose(own.log_scale, local.log_scale[np.array(mine)], atol=1e-2)


@exhaustive
@pytest.mark.slow
def test_the_division_of_units_does_not_matter():
    """What the paper remarks, for 500 steps with several importance samples."""
    data = rows() | {"y": np.abs(np.round(rows()["y"])).astype(int)}
    algorithm = SFVI(model_of(mixed, data), num_steps=500, num_samples=3, num_draws=2, initialise=False)
    tracks = {}
    for num_clients in (1, 2, 7):
        seen = []
        cavity.run(
            algorithm,
            clients(num_clients, data),
            rounds=500,
            tolerance=0.0,
            rounds_per_block=50,
            metrics={"at": lambda q, seen=seen: seen.append(q) or 0.0},
        )
        tracks[num_clients] = np.array([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(q)]) for q in seen])
    assert np.ptp(tracks[1], axis=0).max() > 0.3
    for num_clients in (2, 7):
        np.testing.assert_allclose(tracks[num_clients], tracks[1], atol=1e-8, rtol=0)


@exhaustive
@pytest.mark.slow
def test_a_block_is_the_same_as_single_exchanges():
    algorithm = SFVI(model_once(), num_steps=40, num_samples=2, initialise=False)
    single, block = (
        cavity.run(algorithm, clients(3), rounds=12, tolerance=0.0, rounds_per_block=size, seed=5) for size in (1, 6)
    )
    for one, other in zip(jax.tree.leaves(single.posterior), jax.tree.leaves(block.posterior), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    np.testing.assert_allclose(
        [record["free_energy"] for record in single.history], [record["free_energy"] for record in block.history]
    )
    assert single.history[-1]["bytes"] == block.history[-1]["bytes"]
    for name in single.server.names:
        kept = single.client_states[name].pending.local  # committed with the next message
        for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(block.client_states[name].local), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)
    # and both continue in the same way
    ends = [fit.refine(4, 0.0, rounds_per_block=size).posterior for fit, size in ((single, 4), (block, 1))]
    for one, other in zip(*(jax.tree.leaves(end) for end in ends), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.slow
def test_a_run_that_is_resumed_is_the_run_that_was_not_interrupted(tmp_path):
    algorithm = SFVI(model_once(), num_steps=40, num_samples=2, initialise=False)
    whole = cavity.run(algorithm, clients(2), rounds=20, tolerance=0.0)
    cavity.run(algorithm, clients(2), rounds=9, tolerance=0.0, directory=tmp_path)
    resumed = cavity.resume(tmp_path, clients(2), algorithm=algorithm, rounds=20, tolerance=0.0)
    for one, other in zip(jax.tree.leaves(whole.posterior), jax.tree.leaves(resumed.posterior), strict=True):
        np.testing.assert_array_equal(one, other)


@exhaustive
@pytest.mark.slow
def test_some_clients_at_a_time_are_scaled_for():
    """Over all halves of the clients, the sum divided by the share is on average that of all of them."""
    algorithm = SFVI(model_once(), num_steps=10, num_samples=1, optimiser=optax.sgd, decay=False, initialise=False)
    replies = [_reply(algorithm, data) for data in clients(4).values()]
    method = algorithm.server.initial_state(4)
    exchange = algorithm.server.exchange(np.uint32(0), np.uint32(0), method)

    def moved(some):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *some)
        return algorithm.server.combine(algorithm.prior, method, exchange, stacked, np.asarray(len(some) / 4))[0]

    halves = [moved(pair) for pair in itertools.combinations(replies, 2)]
    average = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *halves)
    for one, other in zip(jax.tree.leaves(average), jax.tree.leaves(moved(replies)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    start = algorithm.prior.q.mean
    assert float(jnp.abs(halves[0].q.mean - start).max()) > 1e-3


@thorough
def test_a_schedule_that_samples_clients_runs():
    algorithm = SFVI(model_once(), num_steps=10, num_samples=1, initialise=False)
    fit = cavity.run(algorithm, clients(4), rounds=3, tolerance=0.0, schedule=SampledCount(2))
    assert [record["communications"] for record in fit.history] == [2, 4, 6]


def _brief(algorithm):
    method = algorithm.server.initial_state(1)
    return ClientInput(algorithm.prior, None, algorithm.server.exchange(np.uint32(0), np.uint32(0), method))


def _reply(algorithm, data):
    prepared = algorithm.model.prepare(data)
    local = algorithm.client.initial_local(prepared)
    update, _, _ = eqx.filter_jit(run_client)(algorithm.client, jax.random.key(0), _brief(algorithm), local, prepared)
    return jax.tree.map(np.asarray, update)


@thorough
def test_what_a_client_sends():
    """Named sums of gradients whose size knows nothing of rows."""
    algorithm = SFVI(model_once(), num_samples=1)
    reply = {
        name: _reply(algorithm, {key: column[:num_rows] for key, column in rows().items()})
        for name, num_rows in (("few", 20), ("many", 84))
    }
    arrays = {path: array.shape for path, array in serialization.pack(jax.tree.map(np.asarray, reply["few"])).items()}
    arrays.pop(serialization.MANIFEST)
    assert arrays == {
        "/delta/q/mean": (2,),
        "/delta/q/log_scale": (2,),
        "/delta/q/below": (2, 2),
        "/report/gap": (),
        "/report/free_energy": (),
        "/report/steps": (),
        "/report/converged": (),
    }
    sizes = {name: len(serialization.to_bytes(jax.tree.map(np.asarray, delta))) for name, delta in reply.items()}
    assert sizes["few"] == sizes["many"]


def test_equal_gradient_sums_are_equal_bytes():
    """Rows (x, y) and (-x, -y) differ, and at slope 0 pull equally: nothing else of them is in the reply."""

    def centred(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    one = {"x": np.array([1.0, 2.0]), "y": np.array([0.5, -1.0])}
    other = {"x": -one["x"], "y": -one["y"]}
    model = numpyro_model(centred, one)
    algorithm = SFVI(model)
    sent = [serialization.to_bytes(_reply(algorithm, data)) for data in (one, other)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("family", ["mean field", "dense", "low rank"])
def test_families_are_what_they_say(family):
    rng = np.random.default_rng(0)
    mean, log_scale = jnp.asarray(rng.normal(size=4)), jnp.asarray(0.3 * rng.normal(size=4))
    q = {
        "mean field": MeanFieldGlobal(mean, log_scale),
        "dense": DenseGlobal(mean, log_scale, jnp.asarray(rng.normal(size=(4, 4)))),
        "low rank": LowRankGlobal(mean, log_scale, jnp.asarray(rng.normal(size=(4, 2)))),
    }[family]
    jacobian = np.asarray(jax.jacobian(q.draw)(jnp.zeros(q.noise_size)))
    z = jnp.asarray(rng.normal(size=4))
    reference = FullGaussian.from_moments(mean, jnp.asarray(jacobian @ jacobian.T))
    assert float(q.log_prob(z)) == pytest.approx(float(reference.log_prob(z)), rel=1e-10)
    np.testing.assert_allclose(q.gaussian.covariance, jacobian @ jacobian.T, rtol=1e-8)
    np.testing.assert_allclose(q.gaussian.mean, mean, rtol=1e-8)


@thorough
@pytest.mark.parametrize("widens", [False, True])
def test_the_local_family_is_what_it_says(widens):
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(0.5 * rng.normal(size=shape))  # noqa: E731
    local = LocalGaussian(make(5, 3), make(5, 3), make(5, 3, 2), make(5, 3, 3), make(5, 3, 2) if widens else None)
    shift, z = make(2), make(5, 3)
    for u in range(5):
        root = np.asarray(jax.jacobian(lambda e, u=u: local.draw(shift, e)[u])(jnp.zeros((5, 3))))[:, u]
        reference = FullGaussian.from_moments(local.draw(shift, jnp.zeros((5, 3)))[u], jnp.asarray(root @ root.T))
        assert float(local.log_prob(z, shift)[u]) == pytest.approx(float(reference.log_prob(z[u])), rel=1e-10)
    moved = local.recentred(shift)
    np.testing.assert_allclose(moved.log_prob(z, jnp.zeros(2)), local.log_prob(z, shift), rtol=1e-10)


def test_what_cannot_be_run_is_refused():
    all_clients = clients(2)
    algorithm = SFVI(model_of(), num_steps=10)
    run = partial(cavity.run, algorithm, rounds=1)
    with pytest.raises(DataError, match="'client1'.*no rows"):
        run(all_clients | {"client1": {name: column[:0] for name, column in rows().items()}})
    twice = {name: np.concatenate([all_clients["client1"][name], all_clients["client0"][name][:1]]) for name in rows()}
    with pytest.raises(DataError, match="'g0' has rows at 'client0' and at 'client1'"):
        run(all_clients | {"client1": twice})
    with pytest.raises(DataError, match="'client1'.*column 'x' not found"):
        run(all_clients | {"client1": {"group": twice["group"], "y": twice["y"]}})
    with pytest.raises(DataError, match="'client1'.*has no column 'z'"):
        run(all_clients | {"client1": twice | {"z": twice["x"]}})
    with pytest.raises(CavityError, match="batch_size"):
        SFVI(model_of(), batch_size=8, num_samples=4)
    with pytest.raises(CavityError, match="num_draws"):
        SFVI(model_of(), num_draws=0)


@pytest.mark.slow
def test_one_program_for_a_sweep_over_step_sizes():
    data, blocks = clients(2), []
    for step_size in (0.01, 0.02, 0.03):
        algorithm = SFVI(model_once(), num_steps=20, step_size=step_size, optimiser=optax.adam, initialise=False)
        with compilations() as names:
            cavity.run(algorithm, data, rounds=10, tolerance=0.0, rounds_per_block=10)
        blocks.append(sum("run_block" in name for name in names))
    assert blocks == [1, 0, 0]


@lru_cache
def model_once():
    return model_of()


def test_dense_family_starts_where_the_model_says():
    q = dense_family(jnp.ones(2), jnp.full(2, 0.1))
    np.testing.assert_allclose(q.root, 0.1 * np.eye(2))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@thorough
def test_noise_of_a_number_is_normal_and_its_own(dtype):
    """Moments and tails of a normal, no correlation between numbers or places, and no look at the neighbours."""
    key = jax.random.key(3)
    numbers = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (400, 2), dtype=np.uint64).astype(np.uint32))
    noise = np.asarray(normal_of(key, numbers, 500, dtype), float)
    assert noise.shape == (400, 500)
    for power, expected, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs((noise**power).mean() - expected) < 5 * np.sqrt(spread / noise.size)
    assert abs(np.corrcoef(noise[0::2].ravel(), noise[1::2].ravel())[0, 1]) < 5 / np.sqrt(noise.size / 2)
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 5 / np.sqrt(noise.size)
    assert 3.5 < np.abs(noise).max() < 7.0
    np.testing.assert_array_equal(normal_of(key, numbers[7:9], 500, dtype), noise[7:9].astype(dtype))
    assert not np.array_equal(normal_of(jax.random.key(4), numbers[:1], 5, dtype), noise[:1, :5].astype(dtype))


def pair(group, y, num_groups):
    """One global mean, and one per group: small enough for plain descent to come to rest."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(level, 1.0))
    numpyro.sample("y", dist.Normal(own[group], 1.0), obs=y)


@pytest.mark.slow
def test_faults():
    """Lost, late and repeated messages and crashes: each accepted reply counts once, and no local step twice."""
    data = {f"client{j}": {"group": np.array([f"g{j}"] * 2), "y": np.array([0.3 * j, 0.1])} for j in range(3)}
    model = numpyro_model(pair, data["client0"], unit="group", num_units="num_groups")
    algorithm = SFVI(model, step_size=0.2, optimiser=optax.sgd, decay=False, num_samples=1, initialise=False)
    seen = check_survives_faults(algorithm, data, 12, num_steps=40, tolerance=1e-6, rest=1e-9, max_rounds=400)
    assert seen["reply accepted"] > 50
    assert seen["stored reply"] > 0
    assert seen["reply refused"] > 0


@thorough
def test_what_is_learned_is_the_maximum_of_the_evidence():
    """One scale in the prior and in the likelihood: its gradient is the server's term plus the sum over clients.

    With s^2 the variance of mu_k and of y_ik around it, the evidence is largest at the within-group squares plus
    n / (n + 1) times the squared means, over all n K numbers. A mean for the sum, or no term of the prior, moves it.
    """

    def scaled(y):
        scale = numpyro.param("scale", 2.0, constraint=dist.constraints.positive)
        mu = numpyro.sample("mu", dist.Normal(0.0, scale).expand([6]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mu, scale).to_event(1), obs=y)

    y = np.random.default_rng(0).normal(np.linspace(-3.0, 3.0, 6), 0.7, (5, 6))
    clients_of_rows = {"a": {"y": y[:2]}, "b": {"y": y[2:3]}, "c": {"y": y[3:]}}
    algorithm = SFVI(numpyro_model(scaled, clients_of_rows["a"]), num_steps=4000, step_size=0.05)
    fit = cavity.run(algorithm, clients_of_rows)
    squares = ((y - y.mean(axis=0)) ** 2).sum() + (5 / 6) * (y.mean(axis=0) ** 2).sum()
    expected = np.sqrt(squares / y.size)
    assert fit.summary()["scale"].mean == pytest.approx(expected, rel=0.01)
