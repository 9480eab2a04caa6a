"""Effects of clients beside effects of groups within clients."""

import numpy as np
import pytest

import cavity
from tests.marks import thorough


def hospitals():
    """Six wards at each of two clients, whose intercepts differ by 1."""
    rng, clients = np.random.default_rng(0), {}
    for i, name in enumerate(("leeds", "york")):
        ward, effects = np.repeat(np.arange(6), 8), 0.5 * rng.normal(size=6)
        age = rng.normal(size=48).round(2)
        died = rng.uniform(size=48) < 1 / (1 + np.exp(-(i + effects[ward] + 0.5 * age)))
        clients[name] = {"age": age, "ward": [f"{name}-{w}" for w in ward], "died": died.astype(int)}
    return clients
