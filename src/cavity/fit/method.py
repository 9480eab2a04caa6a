"""What a fit needs to know of its algorithm.

All access of `cavity.fit`, `cavity.evaluation` and `cavity.hyperparameters` to members of an algorithm that not every
algorithm has, or that only some callers should know, is in this file.
"""

from __future__ import annotations

import jax

from cavity.algorithms import SFVI, SFVIAvg
from cavity.algorithms.factors import FactorAlgorithm
from cavity.core import Algorithm, Initialisation
from cavity.core.messages import ServerState, is_server_owned
from cavity.errors import CavityError, UnsuitableError
from cavity.models.glm.regression import Regression
from cavity.models.mixed.marginal import MarginalModel


def server_entries(server: ServerState) -> frozenset[str]:
    """The names of ledger entries that belong to the server: those of a prior outside the family."""
    return frozenset(filter(is_server_owned, server.names))


def has_settled(algorithm: Algorithm, server: ServerState) -> bool | None:
    """Whether the server's own state shows convergence; None where the clients' gaps decide."""
    return algorithm.convergence.settled(server.method)


def convergence_remark(algorithm: Algorithm, server: ServerState) -> str | None:
    """What the algorithm reports about convergence for a summary; None where the clients' gaps decide."""
    return algorithm.convergence.describe(server.posterior, server.method)


def rounds_or_default(algorithm: Algorithm, rounds: int | None) -> int:
    """The maximum number of rounds: the given one, or the algorithm's default."""
    return algorithm.defaults.rounds if rounds is None else rounds


def block_or_default(algorithm: Algorithm, rounds_per_block: int | None) -> int:
    """The number of rounds that run as one program: the given one, or the algorithm's default."""
    return algorithm.defaults.rounds_per_block if rounds_per_block is None else rounds_per_block


def initialisation(algorithm: Algorithm) -> Initialisation | None:
    """The stage that finds the start of this algorithm, in double precision; None where there is none."""
    with jax.enable_x64(True):
        return algorithm.initialisation


def coefficient_names(algorithm: Algorithm) -> tuple[str, ...]:
    """The parameters of a regression without its noise, shapes and distances of thresholds; all of other models."""
    model = algorithm.model
    if not isinstance(model, Regression):
        return model.parameter_names
    others = {output for output, constant in zip(model.outputs, model.constant, strict=True) if constant}
    return tuple(name for name in model.parameter_names if name not in others | set(model.unseen)) or tuple(
        model.parameter_names
    )


def with_factors(algorithm: Algorithm) -> Algorithm:
    """The algorithm, where it keeps one entry per client.

    Raises:
        CavityError: if it keeps none.
    """
    if algorithm.server.entries is None:
        raise CavityError(
            f"{type(algorithm).__name__} keeps no factor per client that could be removed; run it again without the "
            "client"
        )
    return algorithm


def factors_or_none(algorithm: Algorithm) -> FactorAlgorithm | None:
    """The algorithm, where it is PVI or one of its generalisations; else None."""
    return algorithm if isinstance(algorithm, FactorAlgorithm) else None


def likelihood_power(algorithm: Algorithm) -> float | None:
    """The power p where the posterior approximates prior * likelihood ** p; None where it approximates another density.

    The loss and the divergence of the algorithm decide.
    """
    factors = factors_or_none(algorithm)
    power = None if factors is None else factors.likelihood_power
    return None if power is None else float(power)


def has_likelihood(algorithm: Algorithm) -> bool:
    """Whether the algorithm defines the likelihood of a client's rows given what all clients share."""
    return type(algorithm).log_likelihood is not Algorithm.log_likelihood


def structured_or_none(algorithm: Algorithm) -> SFVI | SFVIAvg | None:
    """The algorithm, where its clients keep local latents; else None."""
    return algorithm if isinstance(algorithm, SFVI | SFVIAvg) else None


def marginal_or_none(algorithm: Algorithm) -> MarginalModel | None:
    """The model of the algorithm, where its clients integrate local latents out; else None."""
    return algorithm.model if isinstance(algorithm.model, MarginalModel) else None


def structured(algorithm: Algorithm) -> SFVI | SFVIAvg:
    """The algorithm, where its clients keep local latents.

    Raises:
        UnsuitableError: if they keep none.
    """
    found = structured_or_none(algorithm)
    if found is None:
        raise UnsuitableError(f"{type(algorithm).__name__} has no local latents, or not with this model")
    return found
