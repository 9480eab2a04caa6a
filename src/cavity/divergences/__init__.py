"""How far q may move from the cavity."""

from cavity.divergences.kl import KL

__all__ = ["KL"]
