"""The flat vector of a multi-layer perceptron's weights, layer by layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jaxtyping import Array, Float


def num_weights(sizes: Sequence[int]) -> int:
    """Weights and biases of all layers."""
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))


def unpack_layers(vector: Float[Array, " d"], sizes: Sequence[int]) -> list[tuple[Array, Array]]:
    """(weights [in, out], biases [out]) of each layer, as views of the vector."""
    layers, at = [], 0
    for fan_in, fan_out in itertools.pairwise(sizes):
        weights = vector[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        layers.append((weights, vector[at : at + fan_out]))
        at += fan_out
    return layers


def layer_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """One name per entry of the vector."""
    names: list[str] = []
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes), start=1):
        names += [f"layer {layer}: w[{i},{j}]" for i in range(fan_in) for j in range(fan_out)]
        names += [f"layer {layer}: b[{j}]" for j in range(fan_out)]
    return tuple(names)
