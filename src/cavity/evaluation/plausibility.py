"""Whether the posterior at which a run stopped can be right at all.

A run can stop where no gradient is left and the parameters are undetermined: a precision of exp(-600) leaves no
gradient. These checks look at the posterior alone, so they need no exchange with the clients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cavity import ledger
from cavity.distributions.trees import entry_names
from cavity.evaluation import diagnostics
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.fit.presentation import presentation_of
from cavity.models.numpyro.latent_model import NumpyroModel

WIDER = 1.25  # times the prior's standard deviation, which some models know from draws only
LARGEST = 1e37  # a mean or sd of this size is at the limit of single precision
NEAR_FLOOR = 3.0  # times the least noise that a linear regression assumes
FARTHEST = 80.0  # unconstrained: exp(80) of a scale, 1 - exp(-80) of a probability


def doubts(fit: Fit) -> tuple[str, ...]:
    """Reasons why a posterior cannot be right.

    Args:
        fit: the fit.

    Returns:
        One sentence each, with its remedy; empty where there are none.
    """
    presentation, model = presentation_of(fit), fit.algorithm.model
    q, latent = presentation.gaussian, presentation.unconstrained
    if q is None or not ledger.is_proper(q):
        return ()
    mean, sd = diagnostics.moments(q)
    names, restricted = tuple(getattr(model, "parameter_names", ())), np.zeros(len(mean), bool)
    if latent is not None:
        sites = (entry_names({site.name: np.zeros(site.shape)}) for site in latent.latents)
        names, restricted = tuple(name for site in sites for name in site), _restricted(latent, mean)
    if len(names) != len(mean):
        names = tuple(f"parameter {i}" for i in range(len(mean)))
    at_limit = ~(np.abs(mean) < LARGEST) | ~(sd < LARGEST) | (restricted & ~(np.abs(mean) < FARTHEST))
    found = []
    if at_limit.any():
        found.append(
            f"{_listed(names, at_limit)} at the limit of floating point; give a less vague prior, or a value in `start`"
        )
    floor = getattr(getattr(model, "likelihood", None), "floor", None)
    if floor is not None and mean[-1] < np.log(NEAR_FLOOR * float(floor)):
        found.append(
            "the noise is negligible compared with the spread of the outcome, so its sd cannot be estimated; give "
            "`noise_sd`, or subtract a known part from the outcome"
        )
    prior_sd = _prior_sd(fit, latent)
    wider = np.zeros(len(sd), bool) if prior_sd is None else ~at_limit & (sd > WIDER * prior_sd)
    if wider.any():
        found.append(
            f"the sd of {_listed(names, wider)} is above the prior's, which is impossible for a Gaussian posterior; "
            "check the model, start nearer to the data, or look for rows that contradict each other"
        )
    return tuple(found)


def _prior_sd(fit: Fit, latent: NumpyroModel | None) -> np.ndarray | None:
    """The prior sd of every entry; None where it is not known, or the posterior is not one under this prior."""
    of_latents = None if latent is None else np.asarray(latent.prior_scale, float)
    if method.structured_or_none(fit.algorithm) is not None:
        return of_latents
    if method.likelihood_power(fit.algorithm) is None:
        return None
    if method.server_entries(fit.server):
        return of_latents
    return diagnostics.moments(fit.server.prior)[1] if ledger.is_proper(fit.server.prior) else None


def _restricted(model: NumpyroModel, mean: np.ndarray) -> np.ndarray:
    """Which entries of the unconstrained vector are transformed parameters (a scale, a share)."""
    with jax.enable_x64(True):
        point = np.linspace(0.1, 0.9, len(mean))
        constrained = model.constrain(model.theta, jnp.asarray(point))
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
