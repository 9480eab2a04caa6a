"""Starting one algorithm from the fit of another, so that no row is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

from cavity import ledger
from cavity.algorithms import SFVI, SFVIAvg
from cavity.core import Algorithm
from cavity.core.messages import ClientState, ServerState
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.fit import local_posterior, method
from cavity.fit.fit import Fit


@runtime_checkable
class StartsFromPoint(Protocol):
    """An algorithm that can start from the point that FedAvg found."""

    def start_from_point(
        self, server: ServerState, count_rows: Callable[[], Mapping[str, float]], precision_per_row: float
    ) -> ServerState:
        """The server's state with a factor around the point for each client."""
        ...


def warm_started(fit: Fit, algorithm: Algorithm, precision_per_row: float | None) -> Fit:
    """Start an algorithm from the fit of another one of the same model.

    Args:
        fit: the fit of SFVI, SFVI-Avg or FedAvg.
        algorithm: SFVI or SFVI-Avg; after FedAvg one of FedEP, FedSEP and FedPA.
        precision_per_row: precision of the point that FedAvg found, per row; None takes that of the algorithm.

    Returns:
        A fit of the other algorithm, before its first round.
    """
    here, there = method.structured_or_none(fit.algorithm), method.structured_or_none(algorithm)
    if here is not None and there is not None:
        return _from_structured(fit, there)
    if isinstance(fit.posterior, PointMass) and isinstance(algorithm, StartsFromPoint):
        precision = _precision(algorithm, precision_per_row)
        server = algorithm.start_from_point(fit.server, partial(_count_rows, fit), precision)
        return replace(fit, algorithm=algorithm, server=server)
    raise CavityError(
        "a warm start is possible between SFVI and SFVI-Avg, and from FedAvg to FedEP, FedSEP or FedPA; this fit is of "
        f"{type(fit.algorithm).__name__}, and the other algorithm is {type(algorithm).__name__}"
    )


def _from_structured(fit: Fit, algorithm: SFVI | SFVIAvg) -> Fit:
    states = {}
    for name in fit.client_states or {}:
        local = algorithm.adopt(local_posterior.local_family(fit, name), fit.posterior)
        states[name] = ClientState(local=local, settled=fit.server.clients[name].settled.sequence)
    server = replace(fit.server, method=algorithm.adopt_globals(fit.posterior), prior=ledger.to_host(algorithm.prior))
    return replace(fit, algorithm=algorithm, server=server, client_states=states)


def _precision(algorithm: Algorithm, precision_per_row: float | None) -> float:
    if precision_per_row is None:
        precision_per_row = getattr(getattr(algorithm.client.solver, "spread", None), "precision_per_row", None)
    if precision_per_row is None:
        raise CavityError(
            "FedAvg's point has no precision; give `precision_per_row`, such as 0.05: the posterior then starts with a "
            "variance of 1 / (precision_per_row * rows of all clients)"
        )
    return float(precision_per_row)


def _count_rows(fit: Fit) -> dict[str, float]:
    chunks = fit.population("start from a point").chunks()
    return {name: float(data.weight.sum()) for chunk in chunks for name, data in chunk.items()}
