"""A study as both sides of a network know it."""

from __future__ import annotations

import json

from cavity import wire
from cavity.engines.letters import Identity
from cavity.errors import StudyError
from cavity.study.building import study_algorithm, study_scaling
from cavity.study.identity import settings
from cavity.study.scaling import Scaling
from cavity.study.schema import Study


def identity_of(study: Study) -> Identity:
    """A study as letters know it."""
    return Identity(study.hash, json.dumps(settings(study)))


def check_for_network(study: Study) -> None:
    """Raise StudyError where a study's method is not for a network."""
    if study.algorithm.method == "sfvi":
        raise StudyError(
            "algorithm.method: SFVI takes thousands of exchanges, which is for one machine (`cavity run`); on a "
            "network use SFVI-Avg, method = 'sfvi-avg'"
        )


def foreign_types(study: Study) -> frozenset[type]:
    """Classes from outside Cavity that messages of a study's own model may hold."""
    any_scaling = Scaling() if study.federated_columns else study_scaling(study)
    algorithm = study_algorithm(study, any_scaling)
    parts = (algorithm, algorithm.scout) if algorithm.scout is not None else (algorithm,)
    return frozenset(wire.types_beside(parts))
