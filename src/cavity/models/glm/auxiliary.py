"""Parameters of a regression beside its coefficients: scales, shapes, and thresholds between ordered levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cavity.core.messages import Record
from cavity.core.natural_scale import NaturalScale


@dataclass(frozen=True)
class Auxiliary(Record):
    """A parameter that all rows share; the model computes with its log.

    Attributes:
        name: of the parameter itself (`sigma`), under which it is reported; empty to report the log.
        in_outcome_units: whether it is in the units of the outcome.
    """

    name: str
    in_outcome_units: bool = False


def auxiliary_scale(
    names: Sequence[str], outputs: Sequence[str], constant: Sequence[bool], auxiliary: Sequence[Auxiliary]
) -> NaturalScale | None:
    """Auxiliary parameters as exponentials of the model's; None if all are reported as logs.

    Args:
        names: of the model's parameters.
        outputs: names of its predictors.
        constant: which of these are auxiliary parameters.
        auxiliary: one per such parameter.
    """
    logs = [output for output, is_auxiliary in zip(outputs, constant, strict=True) if is_auxiliary]
    natural = {log: own.name for log, own in zip(logs, auxiliary, strict=False) if own.name}
    if not natural:
        return None
    is_log = np.array([name in natural for name in names])
    return NaturalScale(
        tuple(natural.get(name, name) for name in names),
        np.diag(np.where(is_log, 0.0, 1.0)),
        np.diag(np.where(is_log, 1.0, 0.0)),
        tuple(natural),
    )


def threshold_scale(names: Sequence[str], thresholds: Sequence[str], num_others: int = 0) -> NaturalScale:
    """Thresholds first, then the slopes.

    The model has the intercept, the slopes, and the logs of the distances between thresholds.

    Args:
        names: of the model's parameters.
        thresholds: one more than there are distances.
        num_others: further parameters at the end, which are reported as they are.
    """
    size, num_gaps = len(names), len(thresholds) - 1
    end = size - num_others
    slopes, gaps = np.arange(1, end - num_gaps), np.arange(end - num_gaps, end)
    others = np.concatenate([slopes, np.arange(end, size)])
    linear, exponential = np.zeros((size, size)), np.zeros((size, size))
    linear[: num_gaps + 1, 0] = -1.0
    exponential[: num_gaps + 1, gaps] = np.tri(num_gaps + 1, num_gaps, -1)
    linear[np.arange(num_gaps + 1, size), others] = 1.0
    kept = tuple(names[int(place)] for place in others)
    return NaturalScale((*thresholds, *kept), linear, exponential, tuple(names[place] for place in gaps.tolist()))
