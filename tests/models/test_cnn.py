"""The convolutional network against JAX's own convolution and pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity import FedAvg
from cavity.errors import CavityError
from cavity.models import cnn_classifier
from cavity.solvers import SGMCMC, Point, SGDIterates
from tests.marks import thorough

SHAPE = (13, 12, 2)


def by_jax(layers, x):
    for layer in layers[:-1]:
        x = jax.lax.conv_general_dilated(
            x, layer["weight"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.lax.reduce_window(
            jax.nn.relu(x + layer["bias"]), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    return x.reshape(len(x), -1) @ layers[-1]["weight"] + layers[-1]["bias"]


@thorough
def test_it_is_a_convolution():
    model = cnn_classifier(SHAPE, 3, channels=(4, 5), kernel=3, dtype=jnp.float64)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, *SHAPE)))
    theta = 0.3 * jax.random.normal(jax.random.key(1), (model.prior.dimension,))
    np.testing.assert_allclose(model.forward(theta, x), by_jax(model.parameters(theta), x), rtol=1e-10)


@thorough
def test_it_learns_under_fedavg():
    """Two kinds of stripes, over three clients; the weights stay in single precision."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=60)
    x = rng.normal(0, 0.3, size=(60, 8, 8, 1)) + np.where(
        y[:, None, None, None] == 1, np.arange(8)[None, :, None, None] % 2, np.arange(8)[None, None, :, None] % 2
    )
    x = x.astype(np.float32)
    model = cnn_classifier((8, 8, 1), 2, channels=(4,), kernel=3)
    solver = SGMCMC(SGDIterates(0.1, momentum=0.5), Point(), num_epochs=4, burn_in=3, batch_size=5)
    clients = {name: (x[i::3], y[i::3].astype(float)) for i, name in enumerate("abc")}
    fit = cavity.run(FedAvg(model, solver=solver), clients, rounds=6, tolerance=0.0)
    assert (np.argmax(fit.predict(x).mean, axis=1) == y).mean() > 0.95
    assert fit.algorithm.prior.location.dtype == jnp.float32


def test_an_image_too_small():
    with pytest.raises(CavityError, match="are empty after"):
        cnn_classifier((6, 6, 1), 2, channels=(4, 4))
