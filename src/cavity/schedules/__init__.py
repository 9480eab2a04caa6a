"""Schedules: which clients work when."""

from cavity.core.lazy_loading import listing
from cavity.schedules.asynchronous import Asynchronous
from cavity.schedules.sampled import SampledCount, SampledShare
from cavity.schedules.sequential import Sequential, SequentialLargestFirst, SequentialShuffled
from cavity.schedules.synchronous import Synchronous

__all__ = [
    "Asynchronous",
    "SampledCount",
    "SampledShare",
    "Sequential",
    "SequentialLargestFirst",
    "SequentialShuffled",
    "Synchronous",
]

__dir__ = listing(__all__)
