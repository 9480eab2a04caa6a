"""How good is the approximation? A verdict from importance weights: in words, with its reasons and numbers.

Draws theta_s of a proposal g that reaches beyond q (`proposals`) have weights for the posterior p and for q,

    w_s = prior(theta_s) * prod_k p(y_k | theta_s) / g(theta_s),     v_s = q(theta_s) / g(theta_s),

each normalised to sum to one. Every parameter's mean and sd under w are compared with those under v: the same draws,
so that most of the Monte Carlo error cancels, all the more the closer q is to p. To first order the error of a
difference of means in units of sd is the root of sum_s d_s^2, d_s = w_s z_s - v_s u_s, where z_s and u_s are theta_s
standardised under p and q; that of the log of a ratio of sds has (z_s^2 - 1) / 2 and (u_s^2 - 1) / 2 in their place.

| verdict | largest error of a mean (in sd) and of an sd | |
| --- | --- | --- |
| exact for practical purposes | below 1 %, log weights with an sd below 0.1 | |
| good | below 5 % | |
| rough | above 5 % | use the corrected values |
| do not use | a mean off by 1 sd, an sd by half, log weights with an sd above 1.5, or k above 0.7 | nor these |
| not assessed | - | the reason is given |

k is the shape of a Pareto tail of w (`importance.pareto_k`). Above 0.7 neither the weighted moments nor their errors
are known, and nothing is concluded from them. Draws are added, up to a budget, until k is clearly below that and the
verdict does not depend on the Monte Carlo error.

Limits. Modes that no draw of g reaches are not seen: beyond some 30 sds of q in one dimension, and nearer in several.
Parameters are judged one by one, on the scale of the summary's coefficients; for a model with constraints, on the
unconstrained scale. Beyond some 50 parameters weights become too uneven for all but a very good q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from cavity import ledger
from cavity.core import Algorithm, ClientSource, Data, LatentModel, ReportedModel
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.errors import UnsuitableError
from cavity.evaluation import diagnostics, proposals, psis
from cavity.fit import execution

EXACT, GOOD, ROUGH, UNUSABLE, UNKNOWN = VERDICTS = (
    "exact for practical purposes",
    "good",
    "rough",
    "do not use",
    "not assessed",
)
TINY, SMALL = 0.01, 0.05  # errors below which a verdict is exact, or good
MEAN_OFF, SD_OFF = 1.0, 0.5  # errors from which on it is another distribution
NARROW = 0.1  # nats: the sd of log weights below which joint probabilities, too, are right
WIDE = 1.5  # nats: from here on q and the posterior are easily told apart, KL(q : p) being about 1
LIMIT = 0.7  # k above which weighted moments are not known (Vehtari et al., 2024)
BATCH = 4000  # draws that are evaluated together
MOST_DRAWS = 32_000  # the budget
MOST_WORK = BATCH * psis.AFFORDABLE  # draws times rows times parameters after the first batch
MANY_PARAMETERS = 50  # beyond, a k above the limit says nothing of single parameters
MOST_PARAMETERS = 500
LARGEST, SMALLEST = 1e30, 1e-300  # of distances in sds, whose squares are still numbers; of an sd


@dataclass(frozen=True)
class Verdict:
    """What to think of a fitted posterior; `print` shows it in a sentence or two.

    Attributes:
        verdict: "exact for practical purposes", "good", "rough", "do not use" or "not assessed".
        reasons: why, in plain sentences.
        mean_error: the largest difference between the fitted and the corrected mean of a parameter, in corrected sds.
        sd_error: the largest |fitted sd / corrected sd - 1|.
        monte_carlo_error: the standard error of these two, whichever is larger.
        log_weight_sd: of log(posterior / fitted) over draws of the fitted posterior, in nats; by the quantiles that are
            one sd from the median of a normal.
        pareto_k: of the weights from which the corrected values come.
        num_draws: evaluated.
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
    """No verdict, and why."""
    return Verdict(UNKNOWN, (reason,))


@dataclass(frozen=True)
class Errors:
    """Fitted against corrected moments of every parameter.

    Attributes:
        shift: (fitted - corrected mean) / corrected sd.
        ratio: fitted / corrected sd.
        shift_error: the Monte Carlo error of `shift`.
        ratio_error: that of log `ratio`.
    """

    shift: Float[np.ndarray, " d"]
    ratio: Float[np.ndarray, " d"]
    shift_error: Float[np.ndarray, " d"]
    ratio_error: Float[np.ndarray, " d"]


def moment_errors(
    theta: Float[np.ndarray, "s d"], log_p: Float[np.ndarray, " s"], log_q: Float[np.ndarray, " s"]
) -> Errors:
    """Moments under weights proportional to exp(log_p) against those under exp(log_q), with Monte Carlo errors.

    Example:
        >>> theta = np.linspace(-8, 8, 2001)[:, None]
        >>> found = moment_errors(theta, -((theta[:, 0] - 0.1) ** 2) / 8, -theta[:, 0] ** 2 / 2)
        >>> found.shift.round(3), found.ratio.round(2)
        (array([-0.05]), array([0.5]))
    """
    w, v = (np.exp(log - np.max(log)) for log in (log_p, log_q))
    w, v = w / w.sum(), v / v.sum()
    (mean, sd, z), (fitted_mean, fitted_sd, u) = (_standardised(theta, weights) for weights in (w, v))
    ratio = fitted_sd / sd
    w, v = w[:, None], v[:, None]
    return Errors(
        shift=(fitted_mean - mean) / sd,
        ratio=ratio,
        shift_error=np.sqrt(np.sum((w * z - v * u * ratio) ** 2, axis=0)),
        ratio_error=np.sqrt(np.sum((w * (z**2 - 1) - v * (u**2 - 1)) ** 2, axis=0)) / 2,
    )


def _standardised(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centre = theta[np.argmax(weights)]  # near the mean, so that nothing cancels
    mean = weights @ (theta - centre)
    sd = np.sqrt(weights @ (theta - centre - mean) ** 2)
    away = theta - centre - mean
    sd = np.maximum(sd, np.max(np.abs(away), axis=0) / LARGEST + SMALLEST)  # 0 where one draw has all the weight
    return centre + mean, sd, away / sd


def judge(
    algorithm: Algorithm,
    prior: Any,
    posterior: Any,
    chunks: Callable[[], Iterable[Mapping[str, Data]]],
    *,
    names: tuple[str, ...],
    num_rows: float,
    units: Callable[[Any], Any] = lambda q: q,
    seed: int = 0,
) -> Verdict:
    """The verdict on a posterior, from one number per client and draw.

    Args:
        algorithm: the method, with its model.
        prior: at the server.
        posterior: what is judged.
        chunks: all clients' rows, anew at every call.
        names: of the parameters.
        num_rows: of all clients; infinite if not known, and one batch of draws is all there is then.
        units: from a Gaussian of the model's parameters to that of the summary's coefficients, an affine map.
        seed: of the draws.

    Raises:
        UnsuitableError: where the method stands for no density of what all clients share.
    """
    psis.check_draws(posterior)
    size = len(names)
    if size > MOST_PARAMETERS:
        return not_assessed(
            f"{size} parameters; importance weights are of use for at most {MOST_PARAMETERS}, and mostly for fewer "
            f"than {MANY_PARAMETERS}. Compare predictions of held-out rows instead (cavity.choose)"
        )
    budget = int(np.clip(MOST_WORK / max(num_rows * size, 1), BATCH, MOST_DRAWS)) // BATCH
    theta, log_p, log_q, of_q, batches = [], [], [], [], 0
    with jax.enable_x64(True):
        prior, posterior = jax.tree.map(jnp.asarray, ledger.to_host((prior, posterior)))
        fitted, in_units = units(posterior), _map_of(units, posterior)
        while True:
            for _ in range(min(max(batches, 1), budget - batches)):  # twice as many as before
                draws = _drawn(posterior, seed, batches)
                batches += 1
                joint, _ = psis.log_joint(algorithm, prior, draws.theta, chunks())
                theta.append(in_units(_flat(draws.theta)))
                log_p.append(joint - draws.log_proposal)
                log_q.append(draws.log_q - draws.log_proposal)
                of_q.append(draws.of_q)
            all_draws, p, q, is_q = (np.concatenate(each) for each in (theta, log_p, log_q, of_q))
            found, settled = _verdict(all_draws, p, q, is_q, names, fitted)
            if settled or batches >= budget:
                return found


def _drawn(posterior: Any, seed: int, batch: int) -> proposals.Draws:
    if isinstance(posterior, Gaussian):
        return proposals.draw(posterior, BATCH, seed, batch)
    theta = posterior.sample(jax.random.fold_in(jax.random.key(seed), batch), (BATCH,))  # no wider family is known
    log_q = np.asarray(jax.jit(jax.vmap(posterior.log_prob))(theta))
    return proposals.Draws(theta, log_q, log_q, np.full(BATCH, True))


def _flat(theta: Any) -> np.ndarray:
    return theta if isinstance(theta, np.ndarray) else np.asarray(jax.vmap(lambda one: ravel_pytree(one)[0])(theta))


def _map_of(units: Callable[[Any], Any], posterior: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From draws to draws in the units of the coefficients; the affine map is read off its effect on means."""
    if not isinstance(posterior, Gaussian) or units(posterior) is posterior:
        return lambda theta: theta
    size = posterior.dimension
    origin, *columns = (
        np.asarray(units(FullGaussian(mean, np.eye(size))).mean) for mean in [np.zeros(size), *np.eye(size)]
    )
    return lambda theta: origin + theta @ (np.stack(columns) - origin)


def _verdict(
    theta: np.ndarray, log_p: np.ndarray, log_q: np.ndarray, of_q: np.ndarray, names: tuple[str, ...], fitted: Any
) -> tuple[Verdict, bool]:
    """The verdict on `fitted` from these draws, and whether more of them would hardly change it."""
    log_ratio = (log_p - log_q)[of_q]
    if np.isnan(log_ratio).any():
        return not_assessed("the log likelihood is NaN at a draw of the posterior"), True
    log_p = np.where(np.isnan(log_p), -np.inf, log_p)  # far out a likelihood may overflow
    errors = moment_errors(theta, log_p, log_q)
    # by quantiles: where q has a little mass that p has not, a single log weight may be any negative number
    spread = float(np.ptp(np.quantile(log_ratio, [0.1587, 0.8413]))) / 2
    k = psis.pareto_k(log_p)
    if np.ptp(log_ratio) < psis.ALIKE or (spread < SMALL and not isinstance(fitted, Gaussian)):
        k = -np.inf  # all weights are equal, or of no consequence; of which k knows nothing
    mean_error, sd_error = float(np.max(np.abs(errors.shift))), float(np.max(np.abs(errors.ratio - 1)))
    noise = float(max(np.max(errors.shift_error), np.max(errors.ratio_error)))
    low, word, high = (_word(mean_error + by, sd_error + by, spread, k) for by in (-2 * noise, 0.0, 2 * noise))
    settled = low == high and not k + 2 * psis.standard_error(k, len(log_p)) > LIMIT
    if word in (EXACT, GOOD) and 2 * noise > SMALL:
        word = ROUGH  # its errors are not known well enough
    if k > LIMIT and len(names) > MANY_PARAMETERS:
        word = UNKNOWN
    mean, sd = diagnostics.moments(fitted)
    sd = sd / errors.ratio  # corrected, from what is known exactly and the differences, which have less noise
    mean = mean - errors.shift * sd
    found = Verdict(
        verdict=word,
        reasons=(),
        mean_error=mean_error,
        sd_error=sd_error,
        monte_carlo_error=noise,
        log_weight_sd=spread,
        pareto_k=k,
        num_draws=len(log_p),
        means=dict(zip(names, mean.tolist(), strict=True)),
        sds=dict(zip(names, sd.tolist(), strict=True)),
    )
    return replace(found, reasons=_reasons(found, errors, names, fitted)), settled


def _word(mean_error: float, sd_error: float, spread: float, k: float) -> str:
    error = max(mean_error, sd_error)
    if k > LIMIT or mean_error > MEAN_OFF or sd_error > SD_OFF or (error > SMALL and spread > WIDE):
        return UNUSABLE
    if error < TINY and spread < NARROW:
        return EXACT
    return GOOD if error < SMALL else ROUGH


def verdict_of(fit: Any, *, in_seconds: bool = False) -> Verdict:
    """The verdict on a fit, or why there is none; with `in_seconds` only where it takes no longer."""
    model, clients = fit.algorithm.model, fit.clients
    if clients is None:
        return not_assessed("the clients' data are not in this process")
    if not fit.history:
        return not_assessed("no round has been run")
    if isinstance(model, LatentModel):
        return not_assessed("the clients keep local latents, over which the weights would have to be integrated")
    if type(fit.algorithm).log_likelihood is Algorithm.log_likelihood:
        return not_assessed(f"{type(fit.algorithm).__name__} has no likelihood of rows given what all clients share")
    if not ledger.is_proper(fit.posterior):
        return not_assessed("the posterior is improper")
    names, num_rows = model.parameter_names, _num_rows(clients)
    if in_seconds and not num_rows * len(names) <= psis.AFFORDABLE:
        size = f"{num_rows:,.0f} rows" if np.isfinite(num_rows) else "streamed clients"
        return not_assessed(f"with {size} and {len(names)} parameters it takes longer than a summary; see fit.verdict")
    chunks = partial(execution.in_chunks, model, clients)
    units = model.reported if isinstance(model, ReportedModel) else lambda q: q
    try:
        return judge(
            fit.algorithm, fit.server.prior, fit.posterior, chunks, names=names, num_rows=num_rows, units=units
        )
    except UnsuitableError as error:
        return not_assessed(str(error))


def remark(fit: Any) -> str:
    """For a summary: the verdict where it is known or takes seconds, and is kept then; else why it is not there."""
    found = fit.__dict__.get("verdict") or verdict_of(fit, in_seconds=True)
    if found.num_draws:
        fit.__dict__["verdict"] = found
    return f"approximation: {found}"


def _num_rows(clients: Mapping[str, Data] | ClientSource) -> float:
    """Of all clients; infinite where that cannot be told without loading them."""
    if isinstance(clients, Mapping):
        return float(sum(len(data.weight) for data in clients.values()))
    sizes = [clients.num_rows(name) for name in clients.names]
    return float("inf") if None in sizes else float(sum(size or 0 for size in sizes))


def _reasons(found: Verdict, errors: Errors, names: tuple[str, ...], fitted: Any) -> tuple[str, ...]:
    """Why this verdict, and what to do."""
    if found.pareto_k > LIMIT:
        draws = f"after {found.num_draws:,} draws Pareto k is {found.pareto_k:.2f}, above {LIMIT}"
        if found.verdict == UNKNOWN:
            return (f"{draws}: with {len(names)} parameters the weights are too uneven to judge single ones",)
        return (f"{draws}: the posterior has tails or modes that the fitted one lacks", _remedy(fitted))
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
    return (*reasons, _remedy(fitted))


def _remedy(fitted: Any) -> str:
    if isinstance(fitted, Gaussian) and not isinstance(fitted, FullGaussian):
        return "give the model family=FullGaussian, which knows correlations"
    return "write the model on a scale on which its posterior is nearer to a Gaussian, or give it a tighter prior"


def _percent(error: float) -> str:
    """Rounded up to a tenth."""
    return f"{max(np.ceil(1000 * error) / 10, 0.1):.1f} %"
