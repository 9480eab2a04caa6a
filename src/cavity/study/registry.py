"""The names that a study file may use, and the objects that they select. Outcome families have their own registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from cavity import aggregation, divergences, losses, schedules
from cavity.core import Damping, Divergence, Loss, Schedule
from cavity.distributions.forms import FORMS
from cavity.distributions.gaussian import Gaussian
from cavity.study.columns import Boolean, Category, Column, Integer, Number, Text
from cavity.study.part import Part

T = TypeVar("T")

COLUMNS: Mapping[str, type[Column]] = {
    column.type_name: column for column in (Number, Integer, Category, Boolean, Text)
}
METHODS = ("pvi", "fedgvi", "sfvi", "sfvi-avg")
COVARIANCES: Mapping[str, type[Gaussian]] = {name: FORMS[name] for name in ("full", "diagonal")}
LOSSES: Mapping[str, Callable[..., Loss]] = {
    "nll": losses.NegativeLogLikelihood,
    "beta": losses.Beta,
    "gamma": losses.Gamma,
    "gce": losses.GeneralisedCrossEntropy,
}
DIVERGENCES: Mapping[str, Callable[..., Divergence]] = {
    "kl": divergences.KL,
    "weighted-kl": divergences.WeightedKL,
    "renyi": divergences.Renyi,
    "reverse-kl": divergences.ReverseKL,
    "fisher-rao": divergences.FisherRao,
}
SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "synchronous": schedules.Synchronous,
    "sequential": schedules.Sequential,
    "sequential-shuffled": schedules.SequentialShuffled,
    "sequential-largest-first": schedules.SequentialLargestFirst,
    "sampled-count": lambda count: schedules.SampledCount(_whole(count)),
    "sampled-share": lambda share: schedules.SampledShare(float(share)),
    "asynchronous": schedules.Asynchronous,
}
DAMPINGS: Mapping[str, Callable[..., Damping]] = {
    "adaptive": lambda: aggregation.Adaptive(),
    "fixed": lambda exponent: aggregation.Fixed(float(exponent)),
    "stale": lambda: aggregation.Stale(aggregation.Adaptive()),
}


def make(words: Mapping[str, Callable[..., T]], part: Part) -> T:
    """The object that a part of a study selects.

    Args:
        words: what each name builds.
        part: a name, with its number if it takes one.
    """
    return words[part.word](*([] if part.number is None else [part.number]))


def _whole(number: float) -> int:
    if number != int(number):
        raise TypeError("a count is a whole number")
    return int(number)
