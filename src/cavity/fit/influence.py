"""How far a client, or one more row of a client, moves the posterior of a fit."""

from __future__ import annotations

from jaxtyping import PyTree

from cavity import ledger
from cavity.core.client_data import prepare_client
from cavity.errors import CavityError
from cavity.evaluation import diagnostics
from cavity.evaluation.diagnostics import Influence
from cavity.evaluation.psis import distribution_or_none
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.fit.presentation import presentation_of


def client_influence(fit: Fit, *, refine: bool) -> dict[str, Influence]:
    """How far the posterior moves without each client.

    Args:
        fit: the fit.
        refine: refine the other clients without it; False compares with the cavity.

    Returns:
        The influence by client.
    """
    if fit.server.held_by_clients:
        raise CavityError(
            'the clients keep their factors, so the server cannot remove one; use run(..., factors="server")'
        )
    algorithm = method.with_factors(fit.algorithm)
    _check_parameters(fit)
    names, presentation = algorithm.model.parameter_names, presentation_of(fit)
    found = {}
    for name in fit.client_names:
        without = fit.withdraw(name).server if refine else ledger.withdraw(algorithm, fit.server, name)
        found[name] = diagnostics.influence(presentation.reported(without.posterior), fit.reported, names)
    return found


def row_influence(fit: Fit, client: str, rows: PyTree, seed: int) -> list[Influence]:
    """How far one more row at a client would move the posterior, for each row by itself.

    Args:
        fit: the fit.
        client: where the row is added.
        rows: in the form of the client's data.
        seed: random seed of a stochastic solver.

    Returns:
        The influence of each row.
    """
    clients = fit.population("compute the influence of a row").data
    algorithm = method.with_factors(fit.algorithm)
    _check_parameters(fit)
    if clients is None or fit.server.held_by_clients:
        raise CavityError(
            "the influence of a row needs the clients' data in memory and the factors at the server; run without a "
            'ClientSource and with factors="server"'
        )
    if client not in clients:
        raise CavityError(f"no client {client!r}; the clients are {', '.join(fit.server.names)}")
    added = prepare_client(algorithm.model, client, rows)
    moved = diagnostics.posteriors_with_rows(algorithm, fit.server, client, clients[client], added, seed)
    reference, *others = (presentation_of(fit).reported(posterior) for posterior in moved)
    return [diagnostics.influence(posterior, reference, algorithm.model.parameter_names) for posterior in others]


def _check_parameters(fit: Fit) -> None:
    if distribution_or_none(fit.posterior) is None:
        raise CavityError("the influence on a function is not one number; compare predictions with and without")
