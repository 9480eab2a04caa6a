"""What SFVI and SFVI-Avg share as algorithms: client part, server part, and the stage that finds where they start."""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import PyTree

from cavity.aggregation.combining import CombiningServer
from cavity.algorithms.bound import Globals
from cavity.algorithms.pvi import PVI
from cavity.algorithms.settling import Settling, block_of
from cavity.algorithms.structured import StructuredInference
from cavity.core import Algorithm, ClientPart, Data, Declaration, Initialisation, RunDefaults
from cavity.distributions.full import FullGaussian
from cavity.distributions.structured import LocalGaussian


class LaplaceFirst(Initialisation):
    """Laplace's method for the model without its local latents runs first.

    Attributes:
        algorithm: that method.
        then: the method that starts at the result.
    """

    algorithm: PVI
    then: Starting

    def data(self, data: Data) -> Data:
        return data

    def start(self, posterior: FullGaussian) -> Algorithm:
        return self.then.starting_at(posterior)


class StructuredClient(ClientPart):
    """A client part that keeps the client's local latents."""

    structured: eqx.AbstractVar[StructuredInference]

    @abc.abstractmethod
    def adopt(self, q: LocalGaussian, shared: Globals) -> PyTree:
        """A client's state that starts here."""

    def initial_local(self, data: Data) -> PyTree:
        return self.adopt(self.structured.initial_q(data), self.structured.start)


class StructuredServer(CombiningServer):
    """A server part for what all clients share."""

    structured: eqx.AbstractVar[StructuredInference]

    @abc.abstractmethod
    def adopt(self, shared: Globals) -> PyTree:
        """The server's own state that starts here."""

    def initial_state(self, num_clients: int) -> PyTree:
        return self.adopt(self.structured.start)


class Starting(Algorithm):
    """A method that can start at a Gaussian of the global latents."""

    structured: eqx.AbstractVar[StructuredInference]
    settling: eqx.AbstractVar[Settling]

    @abc.abstractmethod
    def parts(self) -> tuple[StructuredClient, StructuredServer]:
        """The client part and the server part."""

    @property
    def client(self) -> StructuredClient:
        return self.parts()[0]

    @property
    def server(self) -> StructuredServer:
        return self.parts()[1]

    @property
    def prior(self) -> Globals:
        return self.structured.start

    @property
    def defaults(self) -> RunDefaults:
        rounds = self.settling.planned
        return RunDefaults(rounds, self.settling.multiple if self.settling.by_itself else block_of(rounds))

    @property
    def initialisation(self) -> LaplaceFirst | None:
        first = self.structured.laplace
        return None if first is None else LaplaceFirst(first, self)

    @property
    def declaration(self) -> Declaration:
        return Declaration(self.prior, gap=False, bound=True)

    @abc.abstractmethod
    def starting_at(self, found: FullGaussian) -> Algorithm:
        """The same method, starting at what its initialisation has found."""

    def adopt(self, q: LocalGaussian, shared: Globals) -> PyTree:
        """A client's state that starts here."""
        return self.client.adopt(q, shared)

    def adopt_globals(self, shared: Globals) -> PyTree:
        """The server's own state that starts here."""
        return self.server.adopt(shared)
