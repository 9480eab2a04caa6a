"""Who works when."""

from cavity.schedules.sequential import Sequential, SequentialLargestFirst, SequentialShuffled
from cavity.schedules.synchronous import Synchronous

__all__ = ["Sequential", "SequentialLargestFirst", "SequentialShuffled", "Synchronous"]
