"""A study as both sides of a network see it: its identity, the classes it may send, and the sizes of its messages."""

from __future__ import annotations

import json

from cavity.core import Algorithm
from cavity.errors import StudyError
from cavity.io import serialization
from cavity.network.protocol import Identity, largest_message
from cavity.study.building import study_algorithm
from cavity.study.identity import settings
from cavity.study.models import check_allowed
from cavity.study.scaling import Scaling
from cavity.study.schema import Study

RESULTS = 64 * 2**20  # bytes for the history and summary of a study


def identity_of(study: Study) -> Identity:
    """The identity of a study in messages."""
    return Identity(study.hash, json.dumps(settings(study)))


def check_for_network(study: Study) -> None:
    """Raise StudyError if a study's method does not suit a network, or its model is not allowed here."""
    check_allowed(study)
    if study.algorithm.method == "sfvi":
        raise StudyError(
            "algorithm.method: SFVI needs thousands of exchanges; run it on one machine (`cavity run`), or use "
            "SFVI-Avg on a network: method = 'sfvi-avg'"
        )


def foreign_types(study: Study) -> frozenset[type]:
    """Classes from outside Cavity that messages may contain, for a study with a model of its own."""
    return frozenset(serialization.types_beside(_methods(study)))


def largest_messages(study: Study) -> tuple[int, int]:
    """The largest size in bytes of a client's messages, and of the server's, whose results cover all clients."""
    methods = _methods(study)
    return (
        max(largest_message(method) for method in methods),
        RESULTS + max(largest_message(method, 2 + len(study.clients)) for method in methods),
    )


def _methods(study: Study) -> tuple[Algorithm, ...]:
    """The study's method, and the one of its initialisation if it has one."""
    algorithm = study_algorithm(study, Scaling())
    stage = algorithm.initialisation
    return (algorithm,) if stage is None else (algorithm, stage.algorithm)
