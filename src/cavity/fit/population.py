"""The clients of a fit: their data in memory, or a source from which they are streamed."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import PyTree

from cavity.core import Algorithm, ClientSource, Data, Engine, LatentModel, Model
from cavity.core.client_data import Prepared, prepare_clients, unit_labels
from cavity.core.messages import ClientState, ServerState
from cavity.errors import CavityError

CHUNK = 256  # clients of a source that are loaded at once where no engine decides


@dataclass(frozen=True)
class EngineOptions:
    """What an engine needs besides the algorithm and the server's state; each kind of population uses its own part.

    Attributes:
        states: what the clients keep, from an earlier run.
        visit_seconds: virtual seconds per visit, by client.
        chunk: how many streamed clients are in memory at a time.
    """

    states: Mapping[str, ClientState] | None = None
    visit_seconds: Mapping[str, float] | None = None
    chunk: int | None = None


class Population(abc.ABC):
    """All clients of a fit with their data, and the entries that belong to the server."""

    @property
    @abc.abstractmethod
    def names(self) -> Sequence[str]:
        """The names of all clients, and of the entries that belong to the server."""

    @property
    @abc.abstractmethod
    def data(self) -> Mapping[str, Data] | None:
        """The prepared rows of every client; None where clients are streamed."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> float:
        """The number of rows of all clients; infinite where it is not known before they are loaded."""

    @abc.abstractmethod
    def chunks(self) -> Iterator[Mapping[str, Data]]:
        """The prepared rows of all clients: at once if they are in memory, in groups if they are streamed."""

    @abc.abstractmethod
    def check(self, *, held_by_clients: bool, visit_seconds: Mapping[str, float] | None) -> None:
        """Check options of a run that depend on where the data are.

        Args:
            held_by_clients: whether the clients keep their factors.
            visit_seconds: virtual seconds per visit, by client; None for no virtual time.

        Raises:
            CavityError: where an option is not possible for these clients.
        """

    @abc.abstractmethod
    def engine(self, algorithm: Algorithm, server: ServerState, options: EngineOptions) -> Engine:
        """An engine that runs the clients in this process.

        Args:
            algorithm: the algorithm.
            server: the server's state.
            options: what else it needs.

        Returns:
            The engine; close it after use.
        """


@dataclass(frozen=True)
class InMemory(Population):
    """Clients whose prepared rows are in memory."""

    clients: Mapping[str, Data]

    @property
    def names(self) -> Sequence[str]:
        return list(self.clients)

    @property
    def data(self) -> Mapping[str, Data]:
        return self.clients

    @property
    def num_rows(self) -> float:
        return float(sum(len(data.weight) for data in self.clients.values()))

    def chunks(self) -> Iterator[Mapping[str, Data]]:
        yield self.clients

    def check(self, *, held_by_clients: bool, visit_seconds: Mapping[str, float] | None) -> None:
        if visit_seconds is None:
            return
        if unlike := set(self.clients) ^ set(visit_seconds):
            raise CavityError(f"visit_seconds must have exactly one number per client; see {', '.join(sorted(unlike))}")
        if not all(seconds > 0 for seconds in visit_seconds.values()):
            raise CavityError("visit_seconds must be positive")

    def engine(self, algorithm: Algorithm, server: ServerState, options: EngineOptions) -> Engine:
        from cavity.simulation.local import LocalEngine  # engines are loaded when a run starts

        return LocalEngine(
            algorithm,
            self.clients,
            seed=server.seed,
            held_by_clients=server.held_by_clients,
            states=options.states,
            seconds=options.visit_seconds,
        )


@dataclass(frozen=True)
class Streamed(Population):
    """Clients whose rows are loaded from a source when they are needed."""

    source: Prepared

    @property
    def names(self) -> Sequence[str]:
        return self.source.names

    @property
    def data(self) -> None:
        return None

    @property
    def num_rows(self) -> float:
        sizes = [self.source.num_rows(name) for name in self.source.names]
        return float("inf") if None in sizes else float(sum(size or 0 for size in sizes))

    def chunks(self) -> Iterator[Mapping[str, Data]]:
        all_names = self.source.names
        for first in range(0, len(all_names), CHUNK):
            names = all_names[first : first + CHUNK]
            yield dict(zip(names, self.source.load(names), strict=True))

    def check(self, *, held_by_clients: bool, visit_seconds: Mapping[str, float] | None) -> None:
        if len(set(self.names)) < len(self.names):
            raise CavityError("the source names a client twice; every client needs a name of its own")
        if held_by_clients:
            raise CavityError(
                'clients that are streamed keep no state, so they cannot keep their factors; use factors="server"'
            )
        if visit_seconds is not None:
            raise CavityError("virtual time is for clients whose data are in memory; omit `visit_seconds`")

    def engine(self, algorithm: Algorithm, server: ServerState, options: EngineOptions) -> Engine:
        from cavity.simulation.streaming import StreamingEngine

        return StreamingEngine(algorithm, self.source, seed=server.seed, chunk=options.chunk)


def prepared(
    model: Model | LatentModel, clients: Mapping[str, PyTree] | ClientSource
) -> tuple[Mapping[str, Data] | ClientSource, dict[str, tuple[Hashable, ...]]]:
    """What a fit keeps of the clients that a user gives.

    Args:
        model: the model, by which the rows are checked.
        clients: data by name, or a source, whose rows are checked when they are loaded.

    Returns:
        The prepared rows by name, or the source; and the names of each client's units, for models with local latents.
    """
    if isinstance(clients, ClientSource):
        return clients, {}
    return prepare_clients(model, clients), unit_labels(model, clients)


def population_of(model: Model | LatentModel, clients: Mapping[str, Data] | ClientSource) -> Population:
    """The clients of a fit.

    Args:
        model: the model, by which streamed rows are checked when they are loaded.
        clients: prepared rows by name, or a source.

    Returns:
        The population.
    """
    return Streamed(Prepared(model, clients)) if isinstance(clients, ClientSource) else InMemory(clients)
