"""The words of a study file and what they mean: the only place of this room where a string selects an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cavity import aggregation, divergences, losses, schedules
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.study.columns import Boolean, Category, Column, Integer, Number, Text
from cavity.study.schema import Part

COLUMNS: Mapping[str, type[Column]] = {
    "number": Number,
    "integer": Integer,
    "category": Category,
    "boolean": Boolean,
    "text": Text,
}
REGRESSIONS = ("logistic", "linear", "softmax", "poisson")
METHODS = ("pvi", "fedgvi", "sfvi", "sfvi-avg")
FAMILIES = {"full": FullGaussian, "diagonal": DiagonalGaussian}
LOSSES: Mapping[str, Callable[..., Any]] = {
    "nll": losses.NegativeLogLikelihood,
    "beta": losses.Beta,
    "gamma": losses.Gamma,
    "gce": losses.GeneralisedCrossEntropy,
}
DIVERGENCES: Mapping[str, Callable[..., Any]] = {
    "kl": divergences.KL,
    "weighted-kl": divergences.WeightedKL,
    "renyi": divergences.Renyi,
    "reverse-kl": divergences.ReverseKL,
    "fisher-rao": divergences.FisherRao,
}
SCHEDULES: Mapping[str, Callable[..., Any]] = {
    "synchronous": schedules.Synchronous,
    "sequential": schedules.Sequential,
    "sequential-shuffled": schedules.SequentialShuffled,
    "sequential-largest-first": schedules.SequentialLargestFirst,
    "sampled-count": lambda count: schedules.SampledCount(_whole(count)),
    "sampled-share": lambda share: schedules.SampledShare(float(share)),
    "asynchronous": schedules.Asynchronous,
}
DAMPINGS: Mapping[str, Callable[..., Any]] = {
    "adaptive": lambda: aggregation.Adaptive(),
    "fixed": lambda exponent: aggregation.Fixed(float(exponent)),
    "stale": lambda: aggregation.Stale(aggregation.Adaptive()),
}


def make(words: Mapping[str, Callable[..., Any]], part: Part) -> Any:
    """The object that a part of a study names."""
    return words[part.word](*([] if part.number is None else [part.number]))


def _whole(number: float) -> int:
    if number != int(number):
        raise TypeError("a count is a whole number")
    return int(number)
