"""A study as both sides of a network know it."""

from __future__ import annotations

import json
from typing import Any

from cavity.errors import StudyError
from cavity.io import serialization
from cavity.network.protocol import Identity, largest_message
from cavity.study.building import study_algorithm
from cavity.study.identity import settings
from cavity.study.models import check_allowed
from cavity.study.scaling import Scaling
from cavity.study.schema import Study

RESULTS = 64 * 2**20  # bytes for a study's history and summary


def identity_of(study: Study) -> Identity:
    """A study as letters know it."""
    return Identity(study.hash, json.dumps(settings(study)))


def check_for_network(study: Study) -> None:
    """Raise StudyError where a study's method is not for a network, or its model not allowed here."""
    check_allowed(study)
    if study.algorithm.method == "sfvi":
        raise StudyError(
            "algorithm.method: SFVI takes thousands of exchanges, which is for one machine (`cavity run`); on a "
            "network use SFVI-Avg, method = 'sfvi-avg'"
        )


def foreign_types(study: Study) -> frozenset[type]:
    """Classes from outside Cavity that messages of a study's own model may hold."""
    return frozenset(serialization.types_beside(_methods(study)))


def largest_messages(study: Study) -> tuple[int, int]:
    """How many bytes a client's messages may have, and the server's: what it sends in the end is of all clients."""
    methods = _methods(study)
    return (
        max(largest_message(method) for method in methods),
        RESULTS + max(largest_message(method, 2 + len(study.clients)) for method in methods),
    )


def _methods(study: Study) -> tuple[Any, ...]:
    """The study's method, and the one that searches for its start."""
    algorithm = study_algorithm(study, Scaling())
    stage = algorithm.initialisation
    return (algorithm,) if stage is None else (algorithm, stage.algorithm)
