"""A small convolutional network for images, written so that the networks of many clients can be evaluated at once.

A convolution is a matrix product over the patches of an image. With weights that differ between clients, XLA's CPU
backend has no fast convolution, but it has fast batches of matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree

from cavity.errors import CavityError
from cavity.likelihoods import CategoricalSoftmax
from cavity.models.neural.network import NetworkModel, network_model


def cnn_classifier(
    shape: tuple[int, int, int],
    num_classes: int,
    *,
    channels: Sequence[int] = (8, 16),
    kernel: int = 5,
    prior_scale: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = jnp.float32,
) -> NetworkModel:
    """Convolutions with ReLU, each followed by the maximum over 2 x 2 pixels, and one linear layer to the classes.

    Args:
        shape: of an image: height, width, colours.
        num_classes: labels are 0, ..., num_classes - 1.
        channels: of each convolution.
        kernel: height and width of its patches.
        prior_scale: sd of every weight a priori.
        seed: of the first weights (He initialisation), where FedAvg starts.
        dtype: of the weights.

    Example:
        >>> cnn_classifier((28, 28, 1), 10).prior.dimension
        5994
    """
    height, width, depth = shape
    keys = jax.random.split(jax.random.key(seed), len(channels) + 1)
    layers: list[dict[str, Array]] = []
    for key, after in zip(keys, channels, strict=False):
        layers.append(_layer(key, (kernel, kernel, depth, after), dtype))
        height, width, depth = (height - kernel + 1) // 2, (width - kernel + 1) // 2, after
        if min(height, width) < 1:
            raise CavityError(f"images of shape {shape} are empty after {len(layers)} layers; use fewer layers")
    layers.append(_layer(keys[-1], (height * width * depth, num_classes), dtype))
    return network_model(_forward, layers, CategoricalSoftmax(num_classes), prior_scale=prior_scale)


def _layer(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> dict[str, Array]:
    fan_in = 1
    for size in shape[:-1]:
        fan_in *= size
    weight = jax.random.normal(key, shape, dtype) * jnp.asarray(2.0 / fan_in, dtype) ** 0.5
    return {"bias": jnp.zeros(shape[-1], dtype), "weight": weight}


def _forward(layers: PyTree, x: Float[Array, "n h w c"]) -> Float[Array, "n k"]:
    *convolutions, last = layers
    for layer in convolutions:
        x = _largest_of_four(jax.nn.relu(_patches(x, layer["weight"]) + layer["bias"]))
    return x.reshape(len(x), -1) @ last["weight"] + last["bias"]


def _patches(x: Float[Array, "n h w c"], weight: Float[Array, "k k c o"]) -> Float[Array, "n y z o"]:
    """The convolution without padding: every patch of k x k pixels, times the weights."""
    size = weight.shape[0]
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1) @ weight.reshape(-1, weight.shape[-1])


def _largest_of_four(x: Float[Array, "n h w c"]) -> Float[Array, "n y z c"]:
    number, height, width, depth = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.max(even.reshape(number, height // 2, 2, width // 2, 2, depth), axis=(2, 4))
