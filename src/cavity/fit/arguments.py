"""Checks of the arguments of `cavity.run`, `cavity.resume` and `Fit.refine`.

Every error says what was given, what was expected and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxtyping import PyTree

from cavity.core import Algorithm, ClientSource, LatentModel, Model, Schedule
from cavity.errors import CavityError, DataError


def check_algorithm(algorithm: PyTree) -> None:
    """Check that this is an algorithm.

    Args:
        algorithm: what was given as the first argument of `run`.

    Raises:
        CavityError: if it is a model, or anything else.
    """
    if is_a(algorithm, Algorithm):
        return
    what = "a model" if is_a(algorithm, (Model, LatentModel)) else _described(algorithm)
    raise CavityError(f"the first argument of run is an algorithm, not {what}; give an algorithm such as PVI(model)")


def check_clients(clients: PyTree) -> None:
    """Check that these are clients: a mapping with at least one name, or a source.

    Args:
        clients: what was given as the second argument of `run`.

    Raises:
        DataError: if they are anything else, or if there are none.
    """
    if is_a(clients, ClientSource):
        if not clients.names:
            raise DataError("the source has no clients; it must name at least one")
        return
    if not is_a(clients, Mapping):
        raise DataError(
            f"clients must be a dict of name -> data, not {_described(clients)}; give for example "
            "{'leeds': (x_leeds, y_leeds), 'york': (x_york, y_york)}"
        )
    if not clients:
        raise DataError("there are no clients; give a dict with at least one name -> data")
    for name in clients:
        if not is_a(name, str):
            raise DataError(f"client names must be strings; {name!r} is {_described(name)}")


def check_schedule(schedule: PyTree) -> None:
    """Check that this is a schedule, or None.

    Args:
        schedule: what was given.

    Raises:
        CavityError: if it is anything else.
    """
    if schedule is not None and not is_a(schedule, Schedule):
        raise CavityError(
            f"schedule must be a schedule such as cavity.schedules.Sequential(), not {_described(schedule)}"
        )


def held_by_clients(factors: PyTree) -> bool:
    """Whether the clients keep the factors.

    Args:
        factors: who keeps them, the "server" or the "clients".

    Returns:
        True for "clients".

    Raises:
        CavityError: if it is anything else.
    """
    if not is_a(factors, str) or factors not in ("server", "clients"):
        raise CavityError(f'factors must be "server" or "clients", for who keeps them; it is {factors!r}')
    return factors == "clients"


def check_numbers(
    *,
    rounds: PyTree = None,
    tolerance: PyTree = 0.0,
    seed: PyTree = 0,
    rounds_per_block: PyTree = None,
    chunk: PyTree = None,
    checkpoint_seconds: PyTree = 0.0,
) -> None:
    """Check the numbers that a run is given.

    Args:
        rounds: a whole number of at least 1, or None.
        tolerance: a number of at least 0, in nats.
        seed: a whole number of at least 0.
        rounds_per_block: as `rounds`.
        chunk: as `rounds`.
        checkpoint_seconds: a number of at least 0.

    Raises:
        CavityError: naming the argument, its value and what it must be.
    """
    for name, count in (("rounds", rounds), ("rounds_per_block", rounds_per_block), ("chunk", chunk)):
        if count is not None and not (_is_count(count) and count >= 1):
            raise CavityError(f"{name} must be a whole number of at least 1, or None for the default; it is {count!r}")
    if not (_is_count(seed) and seed >= 0):
        raise CavityError(f"seed must be a whole number of at least 0; it is {seed!r}")
    for name, number in (("tolerance", tolerance), ("checkpoint_seconds", checkpoint_seconds)):
        if not _is_number(number) or math.isnan(number) or number < 0:
            raise CavityError(f"{name} must be a number of at least 0; it is {number!r}")


def _is_count(value: PyTree) -> bool:
    return hasattr(value, "__index__") and not is_a(value, bool)


def _is_number(value: PyTree) -> bool:
    return hasattr(value, "__float__") and not is_a(value, str)


def is_a(value: PyTree, kind: type | tuple[type, ...]) -> bool:
    """Whether a value from outside has a type.

    Args:
        value: what a user or a file gave.
        kind: the type, or several.

    Returns:
        True if it has one of them.
    """
    return isinstance(value, kind)


def _described(value: PyTree) -> str:
    """The type of a value with its article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
