"""Whether a posterior at which a run has ended can be right at all.

A run can come to rest where nothing pulls any more and nothing is known: a precision of exp(-600) leaves no gradient.
What is looked at is the posterior alone, so it costs no exchange.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from cavity import ledger
from cavity.algorithms.bound import Globals
from cavity.algorithms.factors import FactorAlgorithm
from cavity.core.messages import ServerState, is_server_owned
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.trees import entry_names
from cavity.evaluation import diagnostics
from cavity.models.numpyro.globals_only import GlobalsOnly
from cavity.models.numpyro.latent_model import NumpyroModel

WIDER = 1.25  # times the prior's standard deviation, which is known from draws in some models
LARGEST = 1e37  # a mean or sd of that size is at the edge of single precision
NEAR_FLOOR = 3.0  # times the noise that a linear regression assumes in any case
FARTHEST = 80.0  # unconstrained: of a scale or a probability, exp(80) and 1 - exp(-80)


def doubts(algorithm: Any, server: ServerState) -> tuple[str, ...]:
    """What cannot be right about the posterior, in a sentence each with its remedy; none where all is well."""
    posterior, model = server.posterior, algorithm.model
    q: Any = posterior.q.gaussian if isinstance(posterior, Globals) else posterior
    if not isinstance(q, Gaussian) or not ledger.is_proper(q):
        return ()
    mean, sd = diagnostics.moments(q)
    latent = model.latent if isinstance(model, GlobalsOnly) else model if isinstance(model, NumpyroModel) else None
    if isinstance(latent, NumpyroModel):
        sites = (entry_names({site.name: np.zeros(site.shape)}) for site in latent.latents)
        names, restricted = tuple(name for site in sites for name in site), _restricted(latent, mean)
    else:
        names, restricted = tuple(getattr(model, "parameter_names", ())), np.zeros(len(mean), bool)
    if len(names) != len(mean):
        names = tuple(f"parameter {i}" for i in range(len(mean)))
    at_edge = ~(np.abs(mean) < LARGEST) | ~(sd < LARGEST) | (restricted & ~(np.abs(mean) < FARTHEST))
    found = []
    if at_edge.any():
        found.append(
            f"{_listed(names, at_edge)} at the edge of floating point; give a less vague prior, or a value in `start`"
        )
    floor = getattr(getattr(model, "likelihood", None), "floor", None)
    if floor is not None and mean[-1] < np.log(NEAR_FLOOR * float(floor)):
        found.append(
            "the noise is hardly there beside the spread of the outcome, so that its sd is not known; give `noise_sd`, "
            "or take a known part out of the outcome"
        )
    prior_sd = _prior_sd(algorithm, server, latent)
    wider = np.zeros(len(sd), bool) if prior_sd is None else ~at_edge & (sd > WIDER * prior_sd)
    if wider.any():
        found.append(
            f"the sd of {_listed(names, wider)} is above the prior's, which data cannot do to a Gaussian; look at the "
            "model, at a start nearer to the data, or at rows that contradict each other"
        )
    return tuple(found)


def _prior_sd(algorithm: Any, server: ServerState, latent: NumpyroModel | None) -> np.ndarray | None:
    """Of every entry; None where it is not known, or the method does not stand for a posterior under this prior."""
    if isinstance(server.posterior, Globals):
        return None if latent is None else np.asarray(latent.prior_scale, float)
    if not isinstance(algorithm, FactorAlgorithm) or algorithm.likelihood_power is None:
        return None
    if any(map(is_server_owned, server.names)):
        return None if latent is None else np.asarray(latent.prior_scale, float)
    if not isinstance(server.prior, Gaussian) or not ledger.is_proper(server.prior):
        return None
    return diagnostics.moments(server.prior)[1]


def _restricted(model: NumpyroModel, mean: np.ndarray) -> np.ndarray:
    """Which entries of the unconstrained vector stand for something else than themselves (a scale, a share)."""
    with jax.enable_x64(True):
        point = np.linspace(0.1, 0.9, len(mean))
        constrained = model.constrain(model.theta, jax.numpy.asarray(point))
    flags, at = [], 0
    for latent in model.latents:
        value = np.asarray(constrained[latent.name], float)
        own = point[at : at + latent.size].reshape(latent.shape)
        same = value.shape == own.shape and bool(np.allclose(value, own))
        flags.append(np.full(latent.size, not same))
        at += latent.size
    return np.concatenate(flags)


def _listed(names: tuple[str, ...], which: np.ndarray, most: int = 5) -> str:
    chosen = [name for name, is_in in zip(names, which, strict=True) if is_in]
    more = f" and {len(chosen) - most} more" if len(chosen) > most else ""
    return ", ".join(chosen[:most]) + more
