"""Networks from elsewhere: an equinox module, and parameters in nested dicts as flax has them."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cavity
from cavity.likelihoods import CategoricalSoftmax, GaussianNoise
from cavity.models import equinox_model, mlp_classifier, network_model
from cavity.solvers import Gradient
from cavity.solvers.start import Tight
from tests.marks import thorough

SIZES = (2, 4, 3)


def dense(parameters, x):
    """What a flax module of two dense layers does with its parameters."""
    layers = parameters["params"]
    hidden = jax.nn.relu(x @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
    return hidden @ layers["Dense_1"]["kernel"] + layers["Dense_1"]["bias"]


def dense_parameters():
    layers = {
        f"Dense_{i}": {"kernel": jnp.zeros((n, m), jnp.float32), "bias": jnp.zeros(m, jnp.float32)}
        for i, (n, m) in enumerate(itertools.pairwise(SIZES))
    }
    return {"params": layers}


def blobs(num_rows=120, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, num_rows)
    corners = np.array([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    return corners[y] + 0.5 * rng.normal(size=(num_rows, 2)), y


MODELS = {
    "flax": lambda: network_model(dense, dense_parameters(), CategoricalSoftmax(3)),
    "equinox": lambda: equinox_model(
        eqx.nn.MLP(2, 3, 4, 1, dtype=jnp.float32, key=jax.random.key(0)), CategoricalSoftmax(3)
    ),
}


@thorough
def test_the_same_network_written_thrice():
    """The same weights, each in its own order, give the same log likelihoods as the perceptron of Cavity."""
    rng = np.random.default_rng(1)
    w1, b1, w2, b2 = (jnp.asarray(rng.normal(size=shape)) for shape in ((2, 4), (4,), (4, 3), (3,)))
    ours = mlp_classifier(2, [4], 3)
    batch = tuple(jnp.asarray(leaf) for leaf in blobs(10))
    expected = ours.row_log_prob(jnp.concatenate([w1.ravel(), b1, w2.ravel(), b2]), batch)
    flax = {"params": {"Dense_0": {"kernel": w1, "bias": b1}, "Dense_1": {"kernel": w2, "bias": b2}}}
    module = eqx.tree_at(
        lambda m: [leaf for layer in m.layers for leaf in (layer.weight, layer.bias)],
        eqx.filter(eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0)), eqx.is_inexact_array),
        [w1.T, b1, w2.T, b2],
    )
    for name, parameters in (("flax", flax), ("equinox", module)):
        model = MODELS[name]()
        theta = jax.flatten_util.ravel_pytree(parameters)[0]
        np.testing.assert_allclose(model.row_log_prob(theta, batch), expected, rtol=1e-5)
        assert len(model.parameter_names) == theta.size == model.prior.dimension


@pytest.mark.parametrize("kind", MODELS)
@thorough
def test_a_federation_learns_and_stays_in_single_precision(kind):
    x, y = blobs()
    clients = {"a": (x[:50], y[:50]), "b": (x[50:], y[50:])}
    solver = Gradient(optax.adam, 0.05, 200, 32, start=Tight(0.1, jitter=0.5))
    fit = cavity.run(cavity.PVI(MODELS[kind](), solver=solver), clients, rounds=2, tolerance=0.0)
    test_x, test_y = blobs(200, seed=9)
    assert np.mean(np.argmax(fit.predict(test_x, num_draws=50).mean, axis=1) == test_y) > 0.9
    assert fit.posterior.precision.dtype == np.float64  # the ledger's
    assert fit.algorithm.model.prior.precision.dtype == jnp.float32


def test_numbers_as_outcomes():
    model = equinox_model(eqx.nn.MLP(1, 1, 3, 1, key=jax.random.key(0)), GaussianNoise(0.5))
    batch = (np.array([[0.3], [0.1]]), np.array([1.0, -1.0]))
    mean = model.forward(model.prior.mean + 0.1, batch[0])[:, 0]
    gap = (batch[1] - np.asarray(mean)) / 0.5
    expected = -0.5 * gap**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(model.row_log_prob(model.prior.mean + 0.1, batch), expected, rtol=1e-5)


@pytest.mark.parametrize("prior_scale", [0.5, 2.0])
def test_the_scale_of_the_prior(prior_scale):
    model = network_model(dense, dense_parameters(), CategoricalSoftmax(3), prior_scale=prior_scale)
    np.testing.assert_allclose(model.prior.variance, prior_scale**2, rtol=1e-6)
