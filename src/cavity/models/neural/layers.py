"""The flat vector of a multi-layer perceptron's weights, layer by layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
from jaxtyping import Array, Float


def num_weights(sizes: Sequence[int]) -> int:
    """Weights and biases of all layers."""
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))


def unpack_layers(vector: Float[Array, " d"], sizes: Sequence[int]) -> list[tuple[Array, Array]]:
    """(weights [in, out], biases [out]) of each layer; by one split, whose derivative is one concatenation."""
    shapes = list(itertools.pairwise(sizes))
    pieces = jax.lax.split(vector, [size for fan_in, fan_out in shapes for size in (fan_in * fan_out, fan_out)])
    return [
        (weights.reshape(shape), biases)
        for weights, biases, shape in zip(pieces[::2], pieces[1::2], shapes, strict=True)
    ]


def layer_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """One name per entry of the vector."""
    names: list[str] = []
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes), start=1):
        names += [f"layer {layer}: w[{i},{j}]" for i in range(fan_in) for j in range(fan_out)]
        names += [f"layer {layer}: b[{j}]" for j in range(fan_out)]
    return tuple(names)
