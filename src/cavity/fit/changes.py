"""Changes of a fit: further rounds, a client that leaves, a client that joins."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import PyTree

from cavity import ledger
from cavity.core.client_data import check_units, prepare_clients, unit_labels
from cavity.core.messages import ServerState
from cavity.errors import CavityError
from cavity.fit import arguments, method
from cavity.fit.execution import Options, continue_run
from cavity.fit.fit import Fit
from cavity.training import Stopping


def refine(fit: Fit, rounds: int, tolerance: float, options: Options) -> Fit:
    """Run further rounds.

    Args:
        fit: the fit.
        rounds: maximum number of further rounds; at least one is run.
        tolerance: convergence tolerance, in nats.
        options: how rounds are run.

    Returns:
        The refined fit.
    """
    arguments.check_numbers(rounds=rounds, tolerance=tolerance)
    done = len(fit.history)
    return continue_run(fit, Stopping(done + rounds, tolerance, at_least=done + 1), options)


def withdraw(fit: Fit, name: str, rounds: int, tolerance: float) -> Fit:
    """Remove a client: drop its factor, and refine the others to convergence.

    Args:
        fit: the fit.
        name: the client.
        rounds: maximum number of rounds.
        tolerance: convergence tolerance, in nats.

    Returns:
        The fit without the client.
    """
    population = fit.population("withdraw a client")
    algorithm = method.with_factors(fit.algorithm)
    if name in method.server_entries(fit.server):
        raise CavityError("the prior is not a client; it cannot be withdrawn")
    server = _rescheduled(fit, ledger.withdraw(algorithm, fit.server, name))
    data = population.data
    clients = fit.clients if data is None else {key: rows for key, rows in data.items() if key != name}
    states = {key: state for key, state in (fit.client_states or {}).items() if key != name}
    fit = replace(fit, server=server, clients=clients, client_states=states)
    return refine(fit, rounds, tolerance, Options()) if server.clients else replace(fit, stopped="tolerance")


def join(fit: Fit, name: str, data: PyTree, rounds: int, tolerance: float) -> Fit:
    """Add a client: start with a unit factor, and refine to convergence.

    Args:
        fit: the fit.
        name: the new client.
        data: its data, as for `cavity.run`.
        rounds: maximum number of rounds.
        tolerance: convergence tolerance, in nats.

    Returns:
        The fit with the client.
    """
    before = fit.population("add a client").data
    if before is None:
        raise CavityError("clients that are streamed come from their source only; add the client there and run again")
    arguments.check_clients({name: data})
    server = _rescheduled(fit, ledger.join(fit.algorithm, fit.server, name))
    state = fit.algorithm.server.initial_state(len(server.clients))
    model = fit.algorithm.model
    labels = {**fit.labels, **unit_labels(model, {name: data})}
    if any(has(fit.algorithm) is not None for has in (method.structured_or_none, method.marginal_or_none)):
        # units are numbers in prepared data, so their names are compared here
        check_units(labels)
        clients = {**before, **prepare_clients(model, {name: data})}
    else:
        clients = prepare_clients(model, {**before, name: data})
    fit = replace(fit, server=replace(server, method=state), clients=clients, labels=labels)
    return refine(fit, rounds, tolerance, Options())


def _rescheduled(fit: Fit, server: ServerState) -> ServerState:
    return replace(server, schedule=fit.schedule.init(server.names))
