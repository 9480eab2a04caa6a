"""The evidence of a model, log p(y), by its lower bound at the final posterior, whatever the schedule was.

    bound(q) = sum_m E_q[log p(y_m | theta)] - KL(q : prior)  <=  log p(y)

The free energy in a history is this bound at the posterior that the clients received, where all of them received the
same one. Under another schedule the local terms belong to different posteriors, and their sum may exceed log p(y). So
the bound is computed at the end. In one process this takes one expectation per client, in double precision. Over a
network it takes a closing exchange: all clients are asked once more, their reports

    F_m(q) = E_q[log p(y_m | theta) / t_m(theta)],     bound(q) = sum_m F_m(q) + log Z_q        (PVI, property 2.2 a)

are added up, and the updates that come with them are not applied.

Accuracy. Expectations over a linear predictor are closed forms or quadrature. Over theta (models without a linear
predictor) they are averages over fixed nodes, the same as in the solvers, so the bound is that of these nodes. Sums are
in float64. Over a network a client's report has the precision in which it computes: in float32 about 1e-7 of the sum of
its terms.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity import ledger
from cavity.algorithms.factors import FactorAlgorithm
from cavity.core import (
    Algorithm,
    Data,
    Distribution,
    Engine,
    Model,
    Problem,
)
from cavity.core.messages import ServerState
from cavity.distributions.gaussian import gaussian_or_none
from cavity.distributions.quadrature import normal_nodes
from cavity.errors import CavityError
from cavity.evaluation import diagnostics, psis
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.ledger import is_proper
from cavity.simulation.drive import numbers_as_leaves
from cavity.simulation.stacks import buckets, device_mesh
from cavity.solvers.expectations import Expectation, predictor_expectation
from cavity.solvers.point_set import PointSet

ATTEMPTS = 3  # at a closing exchange, in which messages may be lost
MOST_PARAMETERS = 1000  # of a model without a linear predictor, which needs twice as many nodes


def check(algorithm: Algorithm) -> FactorAlgorithm:
    """Check that an algorithm has an evidence.

    Args:
        algorithm: the algorithm, with its model.

    Returns:
        The algorithm.

    Raises:
        CavityError: where it has none, with the reason.
    """
    factors = method.factors_or_none(algorithm)
    if factors is None:
        raise CavityError(
            f"{type(algorithm).__name__} computes a bound with Monte Carlo noise, by which models cannot be compared; "
            "use PVI"
        )
    power = method.likelihood_power(algorithm)
    if power is None or not math.isclose(power, 1.0):
        raise CavityError(
            "a generalised loss or divergence has no evidence, since its likelihood is not that of the data; compare "
            "losses of held-out rows, with cavity.choose"
        )
    if not is_proper(algorithm.prior):
        raise CavityError(psis.NO_EVIDENCE)
    return factors


def has_evidence(algorithm: Algorithm) -> bool:
    """Whether an algorithm has an evidence.

    Args:
        algorithm: the algorithm, with its model.

    Returns:
        True if `check` raises nothing.
    """
    try:
        check(algorithm)
    except CavityError:
        return False
    return True


def log_evidence(fit: Fit) -> float:
    """The bound at the posterior of a fit.

    Args:
        fit: the fit.

    Returns:
        The bound in nats.

    Raises:
        CavityError: where there is none, with the reason.
    """
    algorithm = check(fit.algorithm)
    if not fit.history:
        raise CavityError("the bound is not known yet: no client has replied; continue with fit.refine()")
    if fit.clients is not None:
        return bound(algorithm, fit.server.prior, fit.posterior, fit.population("compute the evidence").chunks())
    version, found = fit.closing or (None, math.nan)
    if version != fit.server.version:
        raise CavityError("the evidence is not in the file; load the fit with the clients' data: clients=...")
    if math.isnan(found):
        raise CavityError("the evidence is not known: not every client answered the closing exchange")
    return found


def with_evidence(fit: Fit) -> Fit:
    """Compute the evidence for a file, where the clients' data are in memory.

    Args:
        fit: the fit.

    Returns:
        The fit with its evidence; the fit as it is where there is none.
    """
    in_memory = fit.clients is not None and fit.population("compute the evidence").data is not None
    if not in_memory or not fit.history or not has_evidence(fit.algorithm):
        return fit
    with contextlib.suppress(CavityError):  # too many parameters
        return replace(fit, closing=(fit.server.version, fit.log_evidence))
    return fit


def bound(
    algorithm: FactorAlgorithm,
    prior: Distribution,
    posterior: Distribution,
    chunks: Iterable[Mapping[str, Data]],
) -> float:
    """E_q[log likelihood of all rows] - KL(q : prior), in double precision.

    Args:
        algorithm: the algorithm, with its model.
        prior: at the server.
        posterior: q.
        chunks: the rows of all clients, which may come in groups.

    Returns:
        The bound in nats.
    """
    total = 0.0
    with jax.enable_x64(True):
        q = jax.tree.map(jnp.asarray, ledger.to_host(posterior))
        for clients in chunks:
            total += _expected_log_likelihood(algorithm, q, clients)
    return total - diagnostics.kl(posterior, prior)


def _expected_log_likelihood(algorithm: FactorAlgorithm, q: PyTree, clients: Mapping[str, Data]) -> float:
    model = algorithm.model
    gaussian = gaussian_or_none(q)
    if _rule(model) is not None or gaussian is None:
        traced = numbers_as_leaves(algorithm)
        each = [np.asarray(_expected_each(traced, q, bucket.data)) for bucket in buckets(clients, device_mesh())]
        return float(sum(sums.sum() for sums in each))
    if gaussian.dimension > MOST_PARAMETERS:
        raise CavityError(
            f"{type(model).__name__} has {gaussian.dimension:,} parameters and no linear predictor, so its expected "
            "log likelihood is known with Monte Carlo noise only; compare losses of held-out rows, with cavity.choose"
        )
    if model.row_model is None:  # the points of its solver
        nodes, weights = PointSet().points(gaussian.dimension)
    else:
        nodes, weights = normal_nodes(gaussian.dimension)
    theta = gaussian.mean + jnp.asarray(nodes) @ jnp.linalg.cholesky(gaussian.covariance).T
    return float(sum(weights @ sent for sent in psis.log_likelihoods(algorithm, theta, clients).values()))


def _rule(model: Model) -> Expectation | None:
    """The expectation over a linear predictor; None for models without one."""
    return predictor_expectation(model, fine=True)


@eqx.filter_jit
def _expected_each(algorithm: FactorAlgorithm, q: PyTree, data: Data) -> Float[Array, " clients"]:
    return jax.vmap(lambda rows: -_expected_loss(algorithm, q, rows))(data)


def _expected_loss(algorithm: FactorAlgorithm, q: PyTree, data: Data) -> Float[Array, ""]:
    """E_q[loss / weight] of a client's rows in the units of the data; the loss is a multiple of -log likelihood."""
    model, rule = algorithm.model, _rule(algorithm.model)
    if rule is None:  # a family other than a Gaussian, which only conjugate models have
        assert model.conjugate is not None
        factor, constant = model.conjugate.likelihood_factor(data)
        return -(q.cross(factor) + constant)
    problem = Problem(model, algorithm.loss, algorithm.divergence, q, q, data)
    expected = rule.value(problem, q) / algorithm.divergence.weight  # pyright: ignore[reportAttributeAccessIssue]
    return expected + algorithm.log_units(data)


def closing_exchange(
    algorithm: Algorithm, engine: Engine, server: ServerState, written: Callable[[ServerState], None]
) -> tuple[ServerState, float]:
    """Ask all clients once more, at the final posterior, for their reports; their updates are not applied.

    The ledger stays as it is, except for the numbers of the messages: these are abandoned. A client that keeps its
    factor drops its answer when the next message says which reply was accepted last.

    Args:
        algorithm: the algorithm.
        engine: runs the clients.
        server: its state after the last round.
        written: called with the server's state before the messages are sent.

    Returns:
        The server's state, and the bound; NaN unless all clients answer.
    """
    server = ledger.abandon(server, server.clients.waiting)
    if not algorithm.client.solver.reports_exactly:
        return server, math.nan
    local: dict[str, float] = {}
    for _ in range(ATTEMPTS):
        missing = [name for name in server.names if name not in local]
        if not missing or engine.interrupted:
            break
        server, messages = ledger.dispatch(algorithm, server, missing)
        written(server)
        for message in messages:
            engine.submit(message)
        while len(local) < len(server.names) and (replies := engine.collect(len(server.names) - len(local))):
            usable = [reply for reply in replies if ledger.reason_to_refuse(server, reply) is None]
            local |= {reply.client: float(np.asarray(reply.update.report.free_energy)) for reply in usable}
        server = ledger.abandon(server, missing)
    if len(local) < len(server.names):
        return server, math.nan
    with jax.enable_x64(True):
        log_z = float(server.posterior.log_partition - server.prior.log_partition)
    return server, math.fsum([*local.values(), log_z])  # independent of the order of the replies
