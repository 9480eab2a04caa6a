"""Clients that are generated when they are needed: a simulated federation of any size, without files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import PyTree

from cavity.core import ClientSource
from cavity.errors import DataError

PREFIX = "client-"
Make = Callable[[np.random.Generator, int, int], PyTree]


@dataclass(frozen=True)
class HeavyTailed:
    """Numbers of rows per client with this mean and standard deviation: log-normal, rounded, at least 1.

    Most clients are small and a few are very large, as in federations of personal devices.

    Attributes:
        mean: of the number of rows.
        sd: its standard deviation.
        maximum: largest number of rows, or None. It cuts off the tail, so the actual mean and standard deviation are
            smaller than `mean` and `sd`.
    """

    mean: float | int
    sd: float | int
    maximum: int | None = None

    def __post_init__(self) -> None:
        if not (self.mean >= 1 and self.sd >= 0):
            raise DataError(
                f"sizes need a mean of at least 1 and an sd of at least 0; they are {self.mean} and {self.sd}"
            )
        if self.maximum is not None and self.maximum < 1:
            raise DataError(f"a client has at least one row, so the maximum cannot be {self.maximum}")

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """Draw the numbers of rows of `num_clients` clients."""
        # log-normal with E = exp(mu + s^2 / 2) and (sd / E)^2 = exp(s^2) - 1
        variance = np.log1p((self.sd / self.mean) ** 2)
        sizes = np.exp(np.log(self.mean) - variance / 2 + np.sqrt(variance) * rng.standard_normal(num_clients))
        return np.clip(np.rint(sizes), 1, self.maximum).astype(np.int64)


# rows per client in the federations of FedEP (Guo et al., 2023), table 1
CIFAR100 = HeavyTailed(100, 0)
STACKOVERFLOW = HeavyTailed(397, 1279)
EMNIST = HeavyTailed(198, 77)


class Generated(ClientSource):
    """Clients called client-0, client-1, and so on. The data of a client depend on the seed and its number only.

    Args:
        num_clients: number of clients.
        sizes: numbers of rows: a distribution, one number for all clients, or one for each.
        make: `make(rng, num_rows, number)` returns the data of a client, in any form that `cavity.run` accepts.
        seed: random seed of sizes and data.

    Example:
        >>> source = Generated(3, HeavyTailed(20, 30), lambda rng, num_rows, i: rng.normal(i, 1.0, num_rows))
        >>> source.names
        ['client-0', 'client-1', 'client-2']
        >>> len(source.load(["client-1"])[0]) == source.num_rows("client-1")
        True
    """

    def __init__(
        self, num_clients: int, sizes: HeavyTailed | int | Sequence[int] | np.ndarray, make: Make, *, seed: int = 0
    ):
        if num_clients < 1:
            raise DataError(f"a federation needs at least one client; num_clients is {num_clients}")
        self._make, self._seed = make, seed
        if isinstance(sizes, HeavyTailed):
            # a separate stream, so that the data of a client do not depend on the number of clients
            self._sizes = sizes.draw(np.random.default_rng([seed]), num_clients)
        else:
            self._sizes = np.broadcast_to(np.asarray(sizes, np.int64), num_clients)
        if (self._sizes < 1).any():
            raise DataError(f"every client needs at least one row; {PREFIX}{int(np.argmin(self._sizes))} has none")
        self._names = [f"{PREFIX}{number}" for number in range(num_clients)]

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def load(self, names: Sequence[str]) -> list[PyTree]:
        numbers = [self._number(name) for name in names]
        return [self._make(np.random.default_rng([self._seed, i]), int(self._sizes[i]), i) for i in numbers]

    def num_rows(self, name: str) -> int:
        return int(self._sizes[self._number(name)])

    def _number(self, name: str) -> int:
        digits = name.removeprefix(PREFIX)
        if not (digits.isdecimal() and int(digits) < len(self._names) and self._names[int(digits)] == name):
            raise DataError(f"unknown client {name!r}; choose one of {PREFIX}0 to {self._names[-1]}")
        return int(digits)
