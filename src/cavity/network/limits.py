"""Limits of a client: how many messages it answers, and for which posteriors.

A server that chooses posteriors freely could read single rows. Around a mean far from zero, the curvature and slope of
a logistic likelihood are those of the few rows at the decision boundary, and the difference of two such updates is the
row between them. So a client answers only if the posterior is proper, and

- its mean is within `MAX_PRIOR_SDS` standard deviations of the prior's. This is for models whose updates depend on
  where the posterior is; a linear model with the negative log likelihood sends the same sums at every posterior;
- its precision is at most the prior's plus what rows within the declared ranges can add (below).

Both are checked for the cavity too (posterior / entry), since the server chooses the entry that it sends. The scaling
of columns must be the study's, or one that sums over all rows can have given.

**Precision.** N rows add at most N c max |x_j|^2 to the precision of coefficient j, where c bounds the curvature of a
row in its linear predictor: 1/4 for logistic and softmax regression, 1 / noise_sd^2 for linear regression with known
noise, in units of the scaled outcome. Where the noise is unknown there is no bound. For Poisson regression c is the
expected count, which the likelihood equations tie to the mean outcome: twice the largest declared one. max |x_j| is
over the declared ranges, in scaled columns, and N is `max_total_rows`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Algorithm
from cavity.core.messages import Message, Reply
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.fit import initialisation
from cavity.study.building import design_sums, sums
from cavity.study.columns import Column, FixedScaling
from cavity.study.encoding import FormulaEncoding
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, Sums
from cavity.study.schema import Study
from cavity.study.table import Table

Gaussian = FullGaussian | DiagonalGaussian  # the posteriors of regressions by formula
MAX_PRIOR_SDS = 5.0
MAX_TOTAL_ROWS = 10_000_000
LEAST_RESERVE = 20  # messages
ROUNDING = 1e-6
CORNERS = 4096  # synthetic rows at the ends of the ranges


def max_total_rows(study: Study) -> int:
    """The maximum number of rows of all clients together."""
    return MAX_TOTAL_ROWS if study.max_total_rows is None else study.max_total_rows


def max_messages(study: Study, algorithm: Algorithm) -> int:
    """The number of messages that a client answers, in all runs of a study: the agreed rounds, and as many again.

    The reserve is for lost replies, for restarted runs, and for rounds after clients have left or joined. An
    asynchronous round
    is as many replies as there are clients, which may all come from one client.
    """
    rounds = algorithm.defaults.rounds if study.run.rounds is None else study.run.rounds
    agreed = rounds * (len(study.clients) if study.run.schedule.word == "asynchronous" else 1)
    agreed += 0 if algorithm.initialisation is None else initialisation.MAX_ROUNDS
    return agreed + max(agreed, LEAST_RESERVE)


@dataclass(frozen=True)
class Bounds:
    """Bounds on the posteriors that a client accepts; None is no bound.

    Attributes:
        prior_sds: on the distance of the mean from the prior's, in standard deviations of the prior.
        added: on the precision minus the prior's, per coefficient.
        notes: which checks are off, and why.
    """

    prior_sds: float | None
    added: np.ndarray | None
    notes: tuple[str, ...]


def bounds(study: Study, scaling: Scaling) -> Bounds:
    """The bounds that a study's model and its declared ranges allow."""
    if (family := study.model.family) is None:
        return Bounds(None, None, ("posteriors are only checked for being proper: the model is the study's own",))
    plain = _is_plain(study)
    if _has_groups(study):
        reason = "the effects of groups are integrated out, and the curvature of the result has no known bound"
        return Bounds(MAX_PRIOR_SDS, None, (f"the precision of a posterior is not checked: {reason}",))
    if study.prior is not None and not study.prior.is_normal:
        reason = "the prior is not normal, and the precision of its approximation is not known before the run"
        return Bounds(MAX_PRIOR_SDS, None, (f"the precision of a posterior is not checked: {reason}",))
    if family.same_sums_everywhere and plain:
        sds, notes = None, ["the mean of a posterior is not checked: a linear model sends the same sums at every one"]
    else:
        sds, notes = MAX_PRIOR_SDS, []
    outcome_scale = 1.0 if scaling.outcome is None else scaling.outcome.scale
    curvature = family.curvature(study.outcome_columns, outcome_scale)
    reason = curvature.reason
    largest = None
    if not plain:
        reason = "the loss or the divergence is not that of the likelihood"
    elif curvature.bound is not None:
        largest, reason = _largest(study, scaling)
    if curvature.bound is None or largest is None:
        return Bounds(sds, None, (*notes, f"the precision of a posterior is not checked: {reason}"))
    if not family.has_intercept:
        largest = largest[int(study.design.intercept) :]
    most = max_total_rows(study)
    added = np.tile(most * curvature.bound * largest**2, family.num_blocks(study.outcome_columns))
    return Bounds(sds, added, tuple(notes))


def problem_with(study: Study, limits: Bounds, algorithm: Algorithm, message: Message) -> str | None:
    """Why a client refuses a message, or None.

    Args:
        study: the agreed study.
        limits: from `bounds`.
        algorithm: the method.
        message: from the server.
    """
    posterior, entry = message.inputs.posterior, message.inputs.entry
    if not ledger.is_finite((posterior, entry)):
        return "its posterior or entry contains a NaN or an infinity"
    if hasattr(type(posterior), "is_proper") and ledger.is_proper(algorithm.prior) and not ledger.is_proper(posterior):
        return "its posterior is improper"
    if limits.prior_sds is None and limits.added is None:
        return None
    checked = {"posterior": posterior} if entry is None else {"posterior": posterior, "cavity": posterior / entry}
    for what, q in checked.items():
        if problem := _problem_with(what, q, algorithm.prior, limits, _is_plain(study) and not _has_groups(study)):
            return problem
    return None


def _problem_with(what: str, q: Gaussian, prior: Gaussian, limits: Bounds, is_plain: bool) -> str | None:
    precision, prior_precision = _diagonal(q), _diagonal(prior)
    if limits.added is not None:
        excess = precision - (prior_precision + limits.added) * (1 + ROUNDING)
        if (excess > 0).any():
            worst = int(np.argmax(excess))
            return (
                f"its {what} has the precision {precision[worst]:.3g} in coefficient {worst + 1}; rows within the "
                f"declared ranges can give at most {prior_precision[worst] + limits.added[worst]:.3g}"
            )
    if limits.prior_sds is None:
        return None
    if not ledger.is_proper(q):
        # robust losses have factors of negative precision; with others, every factor removed is positive
        return f"its {what} is improper" if is_plain and precision.min() < -ROUNDING * precision.max() else None
    sds = np.abs(_mean(q) - _mean(prior)) * np.sqrt(prior_precision)
    if sds.max() > limits.prior_sds:
        worst = int(np.argmax(sds))
        return (
            f"the mean of its {what} is {sds[worst]:.3g} prior standard deviations from the prior's in coefficient "
            f"{worst + 1}, and the limit is {limits.prior_sds:g}; scale the columns, or widen the prior of the study"
        )
    return None


@dataclass(frozen=True)
class ServerBounds:
    """The server's bounds on a client's reply.

    A posterior that the clients refuse would stop the run, so the reply that causes it is refused. And the factor of a
    log-concave likelihood is positive semidefinite; one that is not could cancel the factors of other clients.

    Attributes:
        study: the agreed study.
        scaling: of its columns.
        algorithm: the method.
    """

    study: Study
    scaling: Scaling
    algorithm: Algorithm

    def problem_with(self, posterior: PyTree) -> str | None:
        """Why clients would refuse this posterior, or None."""
        limits = bounds(self.study, self.scaling)
        if limits.prior_sds is None and limits.added is None:
            return None
        is_plain = _is_plain(self.study) and not _has_groups(self.study)
        return _problem_with("posterior", posterior, self.algorithm.prior, limits, is_plain)

    def problem_with_reply(self, message: Message, reply: Reply) -> str | None:
        """Why no rows can have given this reply, or None."""
        entry, family = message.inputs.entry, self.study.model.family
        if entry is None or family is None or not _is_plain(self.study) or not family.is_log_concave:
            return None
        if _has_groups(self.study):  # a marginal likelihood is not log-concave in the standard deviations of effects
            return None
        precision = np.asarray((entry * reply.update.delta).precision, float)
        smallest = np.linalg.eigvalsh(precision)[0] if precision.ndim == 2 else precision.min()
        largest = np.abs(np.asarray(message.inputs.posterior.precision)).max()
        if smallest < -ROUNDING * max(largest, np.abs(precision).max()):
            return f"its factor has the negative precision {smallest:.3g}, which no rows can give"
        return None


def problem_with_scaling(study: Study, table: Table, scaling: Scaling) -> str | None:
    """Why a scaling cannot come from the rows of the study, or None.

    N s^2 = sum over all rows of (x - m)^2, which is at least the same sum over this client's rows.
    """
    rules = study.scaling_rules
    if scaling.outcome is not None:
        rules = rules | {scaling.outcome.name: study.outcome_rule}
    federated = []
    for column in scaling.before_design:
        rule = rules.get(column.name)
        agreed = (rule.centre, rule.scale) if isinstance(rule, FixedScaling) else None
        if rule is None or (agreed is not None and (column.centre, column.scale) != agreed):
            return f"its scaling of column '{column.name}' is not that of the study"
        if agreed is None:
            federated.append(column)
    checks: list[tuple[Sequence[ScaledColumn], Sums, Mapping[str, float]]] = []
    if federated:
        checks.append((federated, sums(study, table), study.agreed_centres))
    if scaling.design:
        checks.append((scaling.design, design_sums(study, table, scaling), {}))
    most = max_total_rows(study)
    for columns, own, centres in checks:
        for column in columns:
            i, n, shift = (
                own.columns.index(column.name),
                float(own.num_rows),
                column.centre - centres.get(column.name, 0.0),
            )
            around = own.sum_of_squares[i] - 2 * shift * own.sum[i] + n * shift**2
            if not around <= most * column.scale**2 * (1 + ROUNDING):  # also if one of them is NaN
                return f"its scaling of column '{column.name}' cannot come from the sums of at most {most:,} rows"
    return None


def fingerprint(study: Study, table: Table) -> Callable[[bytes], str]:
    """A keyed fingerprint of the rows that the study uses; it does not depend on their order."""

    def of(key: bytes) -> str:
        rows: Rows = read_rows(study.used_columns, table)
        cells = [[repr(cell) for cell in rows.values[column.name].tolist()] for column in study.used_columns]
        lines = sorted("\x1f".join(row) for row in zip(*cells, strict=True))
        return hmac.new(key, "\x1e".join(lines).encode(), hashlib.sha256).hexdigest()

    return of


def _is_plain(study: Study) -> bool:
    """Whether the posterior is the Bayesian one, with a normal prior: negative log likelihood and KL."""
    if study.prior is not None and not study.prior.is_normal:
        return False
    choice = study.algorithm
    parts = [(choice.loss, "nll"), (choice.divergence, "kl"), (choice.server_divergence, "kl")]
    return all(part is None or part.word == word for part, word in parts)


def _has_groups(study: Study) -> bool:
    """Whether the formula has group terms."""
    return study.formula is not None and bool(study.formula.groups)


@lru_cache(maxsize=64)
def _largest(study: Study, scaling: Scaling) -> tuple[np.ndarray | None, str]:
    """The largest |x_j| of each coefficient over the declared ranges, the intercept first; None and why if unknown."""
    assert study.model.formula is not None
    design = FormulaEncoding(study.model.formula, study.formula_columns, scaling).design
    rng = np.random.default_rng(0)
    if open_ended := [column.name for column in design.columns if not _has_range(column)]:
        return None, f"no range is declared for {', '.join(open_ended)}"
    values = {column.name: _corners(rng, column) for column in design.columns}
    for name, (low, *_, high) in () if study.formula is None else study.formula.spline_knots.items():
        values[name] = np.clip(values[name], low, high)  # others are refused
    x = scaling.apply_to_design(design.matrix(scaling.apply(values), CORNERS))
    largest = np.abs(x).max(axis=0)
    if not np.isfinite(largest).all():
        return None, "a predictor is not bounded on the declared ranges"
    return np.concatenate([np.ones(int(design.intercept)), largest]), ""


def _has_range(column: Column) -> bool:
    return bool(column.level_names) or (column.limits is not None and bool(np.isfinite(column.limits).all()))


def _corners(rng: np.random.Generator, column: Column) -> np.ndarray:
    """Values mostly at the ends of the range, where products and powers are largest."""
    if column.level_names:
        return rng.integers(len(column.level_names), size=CORNERS)
    assert column.limits is not None
    low, high = column.limits
    inside = rng.uniform(size=CORNERS)
    share = np.where(rng.uniform(size=CORNERS) < 0.2, inside, np.round(inside))
    return low + share * (high - low)


def _diagonal(q: Gaussian) -> np.ndarray:
    precision = np.asarray(q.precision, float)
    return np.diagonal(precision) if precision.ndim == 2 else precision


def _mean(q: Gaussian) -> np.ndarray:
    precision, precision_mean = np.asarray(q.precision, float), np.asarray(q.precision_mean, float)
    return np.linalg.solve(precision, precision_mean) if precision.ndim == 2 else precision_mean / precision
