"""How a method goes on from what another has found, and no row is counted again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cavity import ledger
from cavity.core import LatentModel
from cavity.core.messages import ClientState
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.fit import execution


def warm_started(fit: Any, algorithm: Any, precision_per_row: float | None) -> Any:
    """What `Fit.hand_over` gives."""
    if isinstance(fit.posterior, PointMass) and hasattr(algorithm, "taking_over"):
        return _from_point(fit, algorithm, precision_per_row)
    if not (isinstance(fit.algorithm.model, LatentModel) and isinstance(algorithm.model, LatentModel)):
        raise CavityError(
            "a fit is handed over between SFVI and SFVI-Avg, or from FedAvg to FedEP, FedSEP or FedPA; "
            f"this one is of {type(fit.algorithm).__name__}, and would go to {type(algorithm).__name__}"
        )
    states = {}
    for name in fit.client_states or {}:
        local = algorithm.adopt(fit.local_q(name), fit.posterior)
        states[name] = ClientState(local=local, settled=fit.server.clients[name].settled.sequence)
    method = algorithm.adopt_globals(fit.posterior)
    server = replace(fit.server, method=method, prior=ledger.to_host(algorithm.prior))
    return replace(fit, algorithm=algorithm, server=server, client_states=states)


def _from_point(fit: Any, algorithm: Any, precision_per_row: float | None) -> Any:
    if precision_per_row is None:
        precision_per_row = getattr(getattr(algorithm.solver, "spread", None), "precision_per_row", None)
    if precision_per_row is None:
        raise CavityError(
            "FedAvg's point says nothing of its precision; give `precision_per_row`, such as 0.05: the posterior "
            "starts with a variance of 1 / (precision_per_row * rows of all clients)"
        )
    clients = fit.needs_clients("hand over")

    def count_rows() -> dict[str, float]:
        counted = execution.in_chunks(algorithm.model, clients)
        return {name: float(data.weight.sum()) for chunk in counted for name, data in chunk.items()}

    server = algorithm.taking_over(fit.server, count_rows, float(precision_per_row))
    return replace(fit, algorithm=algorithm, server=server)
