"""How far two posteriors are apart, and how much a client moves one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from cavity import ledger


def kl(q: Any, reference: Any) -> float:
    """KL(q : reference) in nats, in float64 whatever the program's precision."""
    with jax.enable_x64(True):
        return float(ledger.to_host(q).kl(ledger.to_host(reference)))


def moments(q: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every entry of theta, flat, in float64."""
    with jax.enable_x64(True):
        q = ledger.to_host(q)
        mean, variance = ravel_pytree(q.mean)[0], ravel_pytree(q.variance)[0]
        return np.asarray(mean), np.sqrt(np.asarray(variance))


@dataclass(frozen=True)
class Influence:
    """How far the posterior moves when one client is taken out.

    Attributes:
        kl: KL(posterior without the client : posterior with it), in nats.
        shift: the change of each parameter's mean, in standard deviations of the posterior with the client.
    """

    kl: float
    shift: dict[str, float]


def influence(without: Any, posterior: Any, names: tuple[str, ...]) -> Influence:
    """Compare the posterior without a client to the one with it."""
    mean, sd = moments(posterior)
    shift = (moments(without)[0] - mean) / sd
    return Influence(kl(without, posterior), {name: float(s) for name, s in zip(names, shift, strict=True)})
