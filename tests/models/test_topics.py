"""ProdLDA: densities against numpy, padding, batches of documents, the inference network, and the experiment."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import cavity
from cavity.algorithms.ascent import AscentState
from cavity.algorithms.bound import Globals, client_gradient
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.algorithms.structured import ClientTask, LocalState
from cavity.core import pad
from cavity.distributions.structured import LocalGaussian, MeanFieldGlobal
from cavity.errors import CavityError, DataError
from cavity.models.topics import prodlda
from cavity_experiments import runner, sfvi_topics
from cavity_experiments.runner import Size
from tests.marks import needs_data

TOPICS, WORDS = 3, 5
OPTIONS = {"covariance": "diagonal", "coupled": False, "dense": False, "num_samples": 1, "dtype": jnp.float32}


def counts(num_documents=6, seed=0):
    return np.random.default_rng(seed).integers(0, 4, (num_documents, WORDS)) + np.eye(WORDS, dtype=int)[0]


def latents(num_documents=6):
    rng = np.random.default_rng(1)
    return rng.normal(size=TOPICS * WORDS), rng.normal(size=(num_documents, TOPICS))


def softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def test_densities_are_those_by_hand():
    model, (z_global, z_local) = prodlda(TOPICS, WORDS), latents()
    theta = {"alpha": jnp.asarray(0.3), "log_scale_of_topics": jnp.asarray(-0.4)}
    prior = stats.norm.logpdf(z_global, scale=np.exp(-0.4)).sum()
    assert float(model.log_prior(theta, jnp.asarray(z_global))) == pytest.approx(prior, abs=1e-9)
    shares = softmax(softmax(z_local) @ z_global.reshape(TOPICS, WORDS))
    documents = [stats.multinomial.logpmf(c, c.sum(), p) for c, p in zip(counts(), shares, strict=True)]
    joint = np.array(documents) + stats.norm.logpdf(z_local, 0.3).sum(axis=1)
    found = model.log_joint(
        theta, jnp.asarray(z_global), jnp.asarray(z_local), model.prepare(counts()), jax.random.key(0)
    )
    np.testing.assert_allclose(found, joint, atol=1e-9)
    assert len(model.parameter_names) == 2 + TOPICS * WORDS


def test_padding_does_not_matter():
    model = prodlda(TOPICS, WORDS)
    z_global, z_local = map(jnp.asarray, latents(10))
    data = model.prepare(counts())
    alone = model.log_joint(model.theta, z_global, z_local[:6], data, jax.random.key(0))
    padded = model.log_joint(model.theta, z_global, z_local, pad(data, 10, 10), jax.random.key(0))
    np.testing.assert_allclose(padded[:6], alone, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("amortised", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_exchanges(amortised, average, batch_size):
    model = prodlda(TOPICS, WORDS, amortised=amortised, hidden=4)
    clients = {"a": counts(6, 1), "b": counts(9, 2)}
    settings = OPTIONS | {"batch_size": batch_size}
    method = (
        SFVIAvg(model, total=15, num_rounds=2, local_steps=3, **settings)
        if average
        else SFVI(model, num_steps=2, **settings)
    )
    fit = cavity.run(method, clients, rounds=2, tolerance=0.0)
    assert np.isfinite(fit.history[-1]["free_energy"])
    kept = fit.client_states["b"].pending.local.q
    assert kept.mean.shape == (9, 0 if amortised else TOPICS)
    for start, end in zip(jax.tree.leaves(method.prior), jax.tree.leaves(fit.posterior), strict=True):
        assert not np.array_equal(start, end)


def _shared(model, seed=0):
    rng = np.random.default_rng(seed)
    make = lambda *shape: jnp.asarray(0.5 * rng.normal(size=shape))  # noqa: E731
    q = MeanFieldGlobal(make(TOPICS * WORDS), make(TOPICS * WORDS) - 1.0)
    theta = jax.tree.map(lambda leaf: make(*leaf.shape), model.theta)
    return Globals(q, theta), make


@pytest.mark.slow
def test_the_gradient_of_the_inference_network_is_that_of_the_bound():
    """By central differences of the bound with log q as in sticking the landing: its own parameters held fixed."""
    model = prodlda(TOPICS, WORDS, amortised=True, hidden=4)
    data, key = model.prepare(counts()), jax.random.key(0)
    shared, make = _shared(model)
    noise, own_noise = make(1, TOPICS * WORDS), make(1, 1, 6, TOPICS)
    nothing = LocalGaussian(jnp.zeros((6, 0)), jnp.zeros((6, 0)))
    fixed = LocalGaussian(*model.encode(shared.theta, data))
    z = shared.q.draw(noise[0])

    @jax.jit
    def bound(theta):
        z_local = LocalGaussian(*model.encode(theta, data)).draw(z - shared.q.mean, own_noise[0, 0])
        each = model.log_joint(theta, z, z_local, data, key) - fixed.log_prob(z_local, z - shared.q.mean)
        return jnp.sum(each)

    value, gradient, own = client_gradient(model, shared, nothing, noise, own_noise, data, key)
    assert float(value) == pytest.approx(float(bound(shared.theta)), abs=1e-9)
    assert own.mean.shape == (6, 0)
    flat, unravel = jax.flatten_util.ravel_pytree(shared.theta)
    step = 1e-5
    differences = [
        (bound(unravel(flat + step * unit)) - bound(unravel(flat - step * unit))) / (2 * step)
        for unit in np.eye(len(flat))
    ]
    found = jax.flatten_util.ravel_pytree(gradient.theta)[0]
    np.testing.assert_allclose(found, differences, atol=1e-6)
    assert np.abs(jax.flatten_util.ravel_pytree(gradient.theta["encoder"])[0]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("amortised", [False, True])
def test_batches_of_documents_are_right_on_average(amortised):
    """Gradients from two of three documents, against those from all three, over draws of documents and of noise."""
    model = prodlda(TOPICS, WORDS, amortised=amortised, hidden=4)
    data = model.prepare(counts(3))
    shared, make = _shared(model)
    num_own = 0 if amortised else TOPICS
    own = LocalState(LocalGaussian(make(3, num_own), make(3, num_own) - 1.0), AscentState(jnp.asarray(0), ()))

    def gradients(batch_size):
        method = SFVI(model, **OPTIONS | {"dtype": jnp.float64}, batch_size=batch_size).structured
        client = ClientTask(shared, own, method.exchange(0, 0, 1.0), jax.tree.map(jnp.asarray, data))
        each = jax.jit(jax.vmap(lambda key: jax.flatten_util.ravel_pytree(method.gradient(key, client))[0]))
        found = np.asarray(each(jax.random.split(jax.random.key(batch_size or 0), 4000)))
        return found.mean(axis=0), found.std(axis=0) / np.sqrt(len(found))

    (whole, error), (some, some_error) = gradients(None), gradients(2)
    assert np.median(some_error / np.maximum(error, 1e-12)) > 1.1  # documents are drawn
    np.testing.assert_array_less(np.abs(whole - some), 4.5 * np.hypot(error, some_error) + 1e-9)


@pytest.mark.parametrize(("data", "said"), [
    (counts()[:, :4], "column for each of the 5 words"),
    (counts() - 9, "whole numbers"),
    (counts() + 0.5, "whole numbers"),
    (np.full((2, WORDS), np.nan), "missing or infinite"),
    (np.zeros((0, WORDS)), "no rows"),
])  # fmt: skip
def test_bad_data(data, said):
    with pytest.raises(DataError, match=said):
        prodlda(TOPICS, WORDS).prepare(data)


def test_bad_sizes():
    with pytest.raises(CavityError, match="at least two"):
        prodlda(1, WORDS)
    with pytest.raises(CavityError, match="positive"):
        prodlda(TOPICS, WORDS, prior_scale=0.0)


def test_the_settings_are_those_of_the_paper():
    assert (sfvi_topics.NUM_CLIENTS, sfvi_topics.NUM_TOPICS, sfvi_topics.VOCABULARY) == (3, 21, 2000)
    assert (sfvi_topics.ROUNDS, sfvi_topics.LOCAL_STEPS) == (100, 100)


@needs_data
def test_what_is_no_word_is_dropped():
    counted, words, dropped = sfvi_topics.posts(2000)
    assert counted.shape[1] == len(words) == 2000
    assert {"max", "bhj", "giz"} <= set(dropped)
    assert not set(dropped) & set(words)
    assert counted.sum(axis=1).min() > 0


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_small(tmp_path):
    result = runner.run("sfvi-topics", sfvi_topics.sfvi_topics, directory=tmp_path, size=Size.QUICK)
    assert [row["fit"] for row in result.results["fits"]][:2] == ["SFVI-Avg", "SFVI"]
    assert len(result.results["fits"]) == 5
    assert all(np.isfinite(row["bound"]) for row in result.results["fits"])
    assert [check.holds for check in result.checks] == [None, None]
    assert result.figures == ("coherence.png",)
