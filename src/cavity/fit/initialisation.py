"""The start of a run, found by another algorithm that runs first.

SFVI and SFVI-Avg start at the mode of the posterior of the global latents, with the local latents integrated out by
Laplace's method. A few rounds of PVI find it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import jax

from cavity import training
from cavity.core import Algorithm, Data
from cavity.errors import CavityError
from cavity.fit import method
from cavity.schedules import Synchronous
from cavity.training import Stopping

logger = logging.getLogger("cavity")
MAX_ROUNDS = 30
TOLERANCE = 1e-15  # nats: to rounding, so that the start does not depend on how rows are divided over clients
FAR = 1e-3  # nats: the algorithm itself continues from there


def initialised(algorithm: Algorithm, clients: Mapping[str, Data] | None, seed: int) -> tuple[Algorithm, int]:
    """Find the start of an algorithm, in double precision.

    Args:
        algorithm: the algorithm.
        clients: prepared rows by client; None where they are not in memory, and then no start is computed.
        seed: random seed.

    Returns:
        The algorithm with its start, and the number of rounds that this took; 0 where it has no initialisation.
    """
    stage = method.initialisation(algorithm)
    if stage is None or clients is None:
        return algorithm, 0
    from cavity.simulation.local import LocalEngine  # engines are loaded when a run starts

    with jax.enable_x64(True):
        first = stage.algorithm
        data = {name: stage.data(rows) for name, rows in clients.items()} | first.model.server_entries()
        engine, schedule = LocalEngine(first, data, seed=seed), Synchronous()
        server = training.open_federation(first, schedule, list(data), seed)
        try:
            server, history, _ = training.run(first, engine, schedule, server, [], Stopping(MAX_ROUNDS, TOLERANCE))
        except RuntimeError as error:
            raise CavityError(f"the initialisation failed: {error}. Run without it: `initialise=False`") from None
        finally:
            engine.close()
    if not history[-1]["gap"] < FAR:
        logger.warning(
            "the initialisation has not converged: the last of %d rounds changed the start by %.1e nats",
            len(history),
            history[-1]["gap"],
        )
    return stage.start(server.posterior), len(history)
