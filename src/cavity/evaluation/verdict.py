"""How good is the approximation? A verdict from importance weights, with its reasons and numbers.

Draws theta_s of a proposal g that reaches beyond q (`proposals`) have weights for the posterior p and for q,

    w_s = prior(theta_s) * prod_k p(y_k | theta_s) / g(theta_s),     v_s = q(theta_s) / g(theta_s),

each normalised to sum to one. `moment_errors` compares the mean and sd of every parameter under both.

| verdict | largest error of a mean (in sd) and of an sd | |
| --- | --- | --- |
| exact for practical purposes | below 1 %, log weights with an sd below 0.1 | |
| good | below 5 % | |
| rough | above 5 % | use the corrected values |
| do not use | a mean off by 1 sd, an sd by half, log weights with an sd above 1.5, or k above 0.7 | nor these |
| not assessed | - | the reason is given |

k is the shape of a Pareto tail of w (`psis.pareto_k`). Above 0.7 neither the weighted moments nor their errors are
known, and nothing is concluded from them. Draws are added, up to a budget, until k is clearly below 0.7 and the verdict
does not depend on the Monte Carlo error.

Limits. Modes that no draw of g reaches are not seen: beyond about 30 sds of q in one dimension, and nearer in several.
Parameters are assessed one by one, on the scale of the summary's coefficients; for a model with constraints, on the
unconstrained scale. Beyond about 50 parameters weights become too uneven for all but a very good q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from cavity import ledger
from cavity.errors import UnsuitableError
from cavity.evaluation import diagnostics, psis
from cavity.evaluation.moment_errors import MomentErrors, moment_errors
from cavity.fit import method
from cavity.fit.fit import Fit

if TYPE_CHECKING:
    from cavity.evaluation.assessment import Approximation

EXACT, GOOD, ROUGH, UNUSABLE, UNKNOWN = VERDICTS = (
    "exact for practical purposes",
    "good",
    "rough",
    "do not use",
    "not assessed",
)
TINY, SMALL = 0.01, 0.05  # errors below which a verdict is exact, or good
MEAN_OFF, SD_OFF = 1.0, 0.5  # errors above which the fitted posterior is a different distribution
NARROW = 0.1  # nats: the sd of log weights below which joint probabilities are right too
WIDE = 1.5  # nats: above this, q and the posterior are easily distinguished (KL(q : p) is about 1)
LIMIT = 0.7  # k above which weighted moments are not known (Vehtari et al., 2024)
MANY_PARAMETERS = 50  # beyond, a k above the limit shows nothing about single parameters


@dataclass(frozen=True)
class Verdict:
    """How good a fitted posterior is; `print` shows it in one or two sentences.

    Attributes:
        verdict: "exact for practical purposes", "good", "rough", "do not use" or "not assessed".
        reasons: why, in plain sentences.
        mean_error: the largest difference between the fitted and the corrected mean of a parameter, in corrected sds.
        sd_error: the largest |fitted sd / corrected sd - 1|.
        monte_carlo_error: the standard error of these two, whichever is larger.
        log_weight_sd: sd of log(posterior / fitted) over draws of the fitted posterior, in nats; computed from the
            quantiles that are one sd from the median of a normal.
        pareto_k: of the weights from which the corrected values are computed.
        num_draws: number of draws that were evaluated.
        means: corrected, by parameter, in the units of the summary's coefficients.
        sds: corrected, by parameter.
    """

    verdict: str
    reasons: tuple[str, ...]
    mean_error: float = np.nan
    sd_error: float = np.nan
    monte_carlo_error: float = np.nan
    log_weight_sd: float = np.nan
    pareto_k: float = np.nan
    num_draws: int = 0
    means: Mapping[str, float] = field(default_factory=dict, repr=False)
    sds: Mapping[str, float] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.verdict}: {'; '.join(self.reasons)}"


def not_assessed(reason: str) -> Verdict:
    """No verdict.

    Args:
        reason: why not.

    Returns:
        The verdict "not assessed" with this reason.
    """
    return Verdict(UNKNOWN, (reason,))


def verdict_of(fit: Fit, *, in_seconds: bool = False) -> Verdict:
    """The verdict on a fit.

    Args:
        fit: the fit.
        in_seconds: give up where it would take longer than a few seconds.

    Returns:
        The verdict, or "not assessed" with the reason.
    """
    from cavity.evaluation import assessment

    model = fit.algorithm.model
    if fit.clients is None:
        return not_assessed("the clients' data are not in this process")
    if not fit.history:
        return not_assessed("no round has been run")
    if method.structured_or_none(fit.algorithm) is not None:
        return not_assessed("the clients keep local latents, over which the weights would have to be integrated")
    if not method.has_likelihood(fit.algorithm):
        return not_assessed(f"{type(fit.algorithm).__name__} has no likelihood of rows given what all clients share")
    if not ledger.is_proper(fit.posterior):
        return not_assessed("the posterior is improper")
    population, names = fit.population("assess the fit"), model.parameter_names
    if in_seconds and not population.num_rows * len(names) * model.row_cost <= psis.AFFORDABLE:
        size = f"{population.num_rows:,.0f} rows" if np.isfinite(population.num_rows) else "streamed clients"
        return not_assessed(f"with {size} and {len(names)} parameters it takes longer than a summary; see fit.verdict")
    try:
        approximation = assessment.approximation(fit.posterior, model.reported)
        return assessment.assess(
            fit.algorithm, fit.server.prior, approximation, population.chunks, names=names, num_rows=population.num_rows
        )
    except UnsuitableError as error:
        return not_assessed(str(error))


def remark(fit: Fit) -> str:
    """The verdict for a summary.

    Args:
        fit: the fit; it keeps a verdict that was computed here.

    Returns:
        The verdict where it is known or takes seconds; else why there is none. Before it, that the predictors separate
        the outcome, where they do.
    """
    from cavity.evaluation import separation

    found = fit.__dict__.get("verdict") or verdict_of(fit, in_seconds=True)
    if found.num_draws:
        fit.__dict__["verdict"] = found
    separated = separation.remark(fit)
    return f"approximation: {found}" if separated is None else f"{separated}. Approximation: {found}"


def verdict_from_weights(
    theta: Float[np.ndarray, "s d"],
    log_p: Float[np.ndarray, " s"],
    log_q: Float[np.ndarray, " s"],
    of_q: Bool[np.ndarray, " s"],
    names: tuple[str, ...],
    approximation: Approximation,
) -> tuple[Verdict, bool]:
    """The verdict on an approximation from weighted draws.

    Args:
        theta: the draws, in the units of the summary's coefficients.
        log_p: log weights of the posterior.
        log_q: log weights of the approximation.
        of_q: which draws are of the approximation itself.
        names: one per parameter.
        approximation: what is assessed.

    Returns:
        The verdict, and whether more draws would hardly change it.
    """
    log_ratio = (log_p - log_q)[of_q]
    if np.isnan(log_ratio).any():
        return not_assessed("the log likelihood is NaN at a draw of the posterior"), True
    log_p = np.where(np.isnan(log_p), -np.inf, log_p)  # far out a likelihood may overflow
    errors = moment_errors(theta, log_p, log_q)
    # by quantiles, because a single log weight may be very negative where q has a little mass and p has none
    spread = float(np.ptp(np.quantile(log_ratio, [0.1587, 0.8413]))) / 2
    k = psis.pareto_k(log_p)
    if np.ptp(log_ratio) < psis.ALIKE or (spread < SMALL and not approximation.reaches_beyond):
        k = -np.inf  # all weights are equal, or nearly so; k is not defined for them
    noise = errors.monte_carlo_error
    low, word, high = (
        _word(errors.mean_error + by, errors.sd_error + by, spread, k) for by in (-2 * noise, 0.0, 2 * noise)
    )
    settled = low == high and not k + 2 * psis.standard_error(k, len(log_p)) > LIMIT
    if word in (EXACT, GOOD) and 2 * noise > SMALL:
        word = ROUGH  # its errors are not known well enough
    if k > LIMIT and len(names) > MANY_PARAMETERS:
        word = UNKNOWN
    mean, sd = diagnostics.moments(approximation.fitted)
    sd = sd / errors.ratio  # corrected: from the exact fitted moments and the differences, which have less noise
    mean = mean - errors.shift * sd
    found = Verdict(
        verdict=word,
        reasons=(),
        mean_error=errors.mean_error,
        sd_error=errors.sd_error,
        monte_carlo_error=noise,
        log_weight_sd=spread,
        pareto_k=k,
        num_draws=len(log_p),
        means=dict(zip(names, mean.tolist(), strict=True)),
        sds=dict(zip(names, sd.tolist(), strict=True)),
    )
    return replace(found, reasons=_reasons(found, errors, names, approximation.remedy)), settled


def _word(mean_error: float, sd_error: float, spread: float, k: float) -> str:
    error = max(mean_error, sd_error)
    if k > LIMIT or mean_error > MEAN_OFF or sd_error > SD_OFF or (error > SMALL and spread > WIDE):
        return UNUSABLE
    if error < TINY and spread < NARROW:
        return EXACT
    return GOOD if error < SMALL else ROUGH


def _reasons(found: Verdict, errors: MomentErrors, names: tuple[str, ...], remedy: str) -> tuple[str, ...]:
    """Why this verdict, and what to do."""
    if found.pareto_k > LIMIT:
        draws = f"after {found.num_draws:,} draws Pareto k is {found.pareto_k:.2f}, above {LIMIT}"
        if found.verdict == UNKNOWN:
            return (f"{draws}: with {len(names)} parameters the weights are too uneven to assess single ones",)
        return (f"{draws}: the posterior has tails or modes that the fitted one lacks", remedy)
    if found.log_weight_sd < psis.ALIKE:
        return ("all importance weights are equal",)
    numbers = f"sd of log weights {found.log_weight_sd:.2g}, {found.num_draws:,} draws"
    numbers += f", Pareto k {found.pareto_k:.2f}" if np.isfinite(found.pareto_k) else ""
    if found.verdict in (EXACT, GOOD):
        errors_within = f"means within {_percent(found.mean_error)} of an sd, sds within {_percent(found.sd_error)}"
        return (f"{errors_within} of the corrected ones ({numbers})",)
    worst_mean, worst_sd = int(np.argmax(np.abs(errors.shift))), int(np.argmax(np.abs(errors.ratio - 1)))
    reasons = [
        f"the mean of {names[worst_mean]} is off by {found.mean_error:.2f} sd, the sd of {names[worst_sd]} is "
        f"{errors.ratio[worst_sd]:.2f} of the corrected one (+- {found.monte_carlo_error:.2g}; {numbers})"
    ]
    if found.verdict == ROUGH:
        return (*reasons, "use the corrected values in fit.verdict.means and fit.verdict.sds")
    return (*reasons, remedy)


def _percent(error: float) -> str:
    """In percent, rounded up to a tenth."""
    return f"{max(np.ceil(1000 * error) / 10, 0.1):.1f} %"
