"""The data of the experiments with sparse Gaussian processes: what each client has, and what is held out.

Of the paper (section 6 and appendix D): a synthetic function observed by five clients on neighbouring intervals; UCI
sets in K = 10 homogeneous splits; weather stations in 32 inhomogeneous ones, which are blocks of the map here, not
countries. Everything is standardised by the training rows of all clients together, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cavity.datasets import partition
from cavity_experiments import sources
from cavity_experiments.sources.scaling import Rows, Scaling

UCI_CLIENTS, STATION_CLIENTS = 10, 32

SYNTHETIC_CENTRES = (-2.0, -1.0, 0.0, 1.0, 2.0)
HALF_STRETCH = 0.3
LENGTH_SCALE, SCALE, NOISE_SD = 0.3, 1.0, 0.1
_JITTER = 1e-8


@dataclass(frozen=True, eq=False)
class Federated:
    """A regression set among clients, standardised.

    Attributes:
        clients: name -> inputs [n_k, p] and targets [n_k].
        test: inputs [m, p] and targets [m].
        scaling: from and to raw units.
        places: name -> raw longitude and latitude of the rows [n_k, 2], for maps of the stations; else None.
    """

    clients: dict[str, Rows]
    test: Rows
    scaling: Scaling
    places: dict[str, np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A draw from a Gaussian process with kernel SCALE^2 exp(-(x - x')^2 / (2 LENGTH_SCALE^2)).

    Attributes:
        clients: name -> inputs [n_k, 1] and targets [n_k], each on its own interval.
        test: inputs [m, 1], evenly spaced from the first interval to the last, and targets [m] with independent noise.
        function: the values that the test targets are noisy versions of [m].
        between: whether a test input lies between two intervals [m].
    """

    clients: dict[str, Rows]
    test: Rows
    function: np.ndarray
    between: np.ndarray


def synthetic_1d(seed: int, rows_per_client: int = 20, num_test: int = 231) -> Synthetic:
    """Five clients on neighbouring intervals, each with uniform inputs on its interval; noise N(0, NOISE_SD^2).

    Intervals are 0.6 wide and 0.4 apart, around -2, -1, 0, 1 and 2. The paper prints neither its function nor its
    kernel; these are ours.
    """
    rng = np.random.default_rng(seed)
    stretches = {f"client-{i:02d}": centre for i, centre in enumerate(SYNTHETIC_CENTRES)}
    rows = {
        name: np.sort(centre + rng.uniform(-HALF_STRETCH, HALF_STRETCH, rows_per_client))
        for name, centre in stretches.items()
    }
    grid = np.linspace(SYNTHETIC_CENTRES[0] - HALF_STRETCH, SYNTHETIC_CENTRES[-1] + HALF_STRETCH, num_test)
    x = np.concatenate([*rows.values(), grid])
    # f ~ N(0, K), y = f + noise
    covariance = SCALE**2 * np.exp(-0.5 * ((x[:, None] - x) / LENGTH_SCALE) ** 2)
    f = np.linalg.cholesky(covariance + _JITTER * np.eye(len(x))) @ rng.normal(size=len(x))
    y = f + NOISE_SD * rng.normal(size=len(x))
    *targets, at_grid = np.split(y, np.arange(1, len(rows) + 1) * rows_per_client)
    clients = {name: (inputs[:, None], y_k) for (name, inputs), y_k in zip(rows.items(), targets, strict=True)}
    distance = np.min(np.abs(grid[:, None] - np.array(SYNTHETIC_CENTRES)), axis=1)
    return Synthetic(clients, (grid[:, None], at_grid), f[-num_test:], distance > HALF_STRETCH + 1e-9)


def uci(name: str, split: int, *, homogeneous: bool = True) -> Federated:
    """A UCI set among ten clients: at random, as in the paper, or along the first principal component."""
    train, test, scaling = sources.standardised(sources.uci_regression(name, split))
    if homogeneous:
        parts = partition.homogeneous(np.random.default_rng(split), len(train[1]), UCI_CLIENTS)
    else:
        parts = partition.along_component(train[0], UCI_CLIENTS)
    return Federated(partition.select(train, parts), test, scaling)


def stations(split: int = 0) -> Federated:
    """The weather stations of the United States among 32 blocks of longitude and latitude."""
    table = sources.us_stations(split)
    train, test, scaling = sources.standardised(table)
    places = table.x[table.train, :2]
    parts = partition.by_blocks(places, STATION_CLIENTS)
    return Federated(partition.select(train, parts), test, scaling, partition.select(places, parts))
