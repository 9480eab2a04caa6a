"""What a client answers: how many messages, and to which posteriors.

A server that chooses posteriors freely reads single rows. Around a mean far from zero, the curvature and slope of a
logistic likelihood are those of the few rows at the decision boundary, and the difference of two such answers is the
row between them. So a client answers a posterior only if it is proper, and

- its mean is within `MAX_PRIOR_SDS` standard deviations of the prior's. This is for models whose answers depend on
  where the posterior is; a linear model with the negative log likelihood sends the same sums at every posterior;
- its precision is at most the prior's plus what rows within the declared ranges can add (below).

Both hold for the cavity too, posterior / row, since the server chooses the row that it sends. The scaling of columns
must be the study's, or one that sums over all rows can have given.

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
from typing import Any

import numpy as np

from cavity import ledger
from cavity.core import Algorithm
from cavity.core.messages import Message, Reply
from cavity.fit import initialisation
from cavity.study.building import design_sums, sums
from cavity.study.columns import Column, FixedScaling
from cavity.study.encoding import FormulaEncoding
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, Sums
from cavity.study.schema import Study
from cavity.study.table import Table

MAX_PRIOR_SDS = 5.0
MAX_TOTAL_ROWS = 10_000_000
LEAST_RESERVE = 20  # messages
ROUNDING = 1e-6
CORNERS = 4096  # rows of nobody, at the ends of ranges


def max_total_rows(study: Study) -> int:
    """How many rows all clients have together, at most."""
    return MAX_TOTAL_ROWS if study.max_total_rows is None else study.max_total_rows


def max_messages(study: Study, algorithm: Algorithm) -> int:
    """How many messages a client answers, in all runs of a study: those of the agreed rounds, and as many again.

    The reserve is for replies that are lost, for runs that begin anew, and for rounds after members have changed. An
    asynchronous round is as many replies as there are clients, which may all be one client's.
    """
    rounds = algorithm.defaults.rounds if study.run.rounds is None else study.run.rounds
    agreed = rounds * (len(study.clients) if study.run.schedule.word == "asynchronous" else 1)
    agreed += 0 if algorithm.initialisation is None else initialisation.MAX_ROUNDS
    return agreed + max(agreed, LEAST_RESERVE)


@dataclass(frozen=True)
class Bounds:
    """On the posteriors that a client answers; None is no bound.

    Attributes:
        prior_sds: of the mean, from the prior's, in standard deviations of the prior.
        added: to the prior's precision, per coefficient.
        notes: which checks are off, and why.
    """

    prior_sds: float | None
    added: np.ndarray | None
    notes: tuple[str, ...]


def bounds(study: Study, scaling: Scaling) -> Bounds:
    """The bounds that a study's model and its declared ranges allow."""
    if (family := study.model.family) is None:
        return Bounds(None, None, ("posteriors are not checked but for being proper: the model is the study's own",))
    plain = _is_plain(study)
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
    most = max_total_rows(study)
    added = np.tile(most * curvature.bound * largest**2, family.num_blocks(study.outcome_columns))
    return Bounds(sds, added, tuple(notes))


def problem_with(study: Study, limits: Bounds, algorithm: Algorithm, message: Message) -> str | None:
    """Why a message's posterior is not answered, or None."""
    posterior, row = message.inputs.posterior, message.inputs.entry
    if not ledger.is_finite((posterior, row)):
        return "its posterior or row holds a NaN or an infinity"
    if hasattr(type(posterior), "is_proper") and ledger.is_proper(algorithm.prior) and not ledger.is_proper(posterior):
        return "its posterior is improper"
    if limits.prior_sds is None and limits.added is None:
        return None
    asked = {"posterior": posterior} if row is None else {"posterior": posterior, "cavity": posterior / row}
    for what, q in asked.items():
        if problem := _problem_with(what, q, algorithm.prior, limits, _is_plain(study)):
            return problem
    return None


def _problem_with(what: str, q: Any, prior: Any, limits: Bounds, is_plain: bool) -> str | None:
    precision, prior_precision = _diagonal(q), _diagonal(prior)
    if limits.added is not None:
        excess = precision - (prior_precision + limits.added) * (1 + ROUNDING)
        if (excess > 0).any():
            worst = int(np.argmax(excess))
            return (
                f"its {what} has the precision {precision[worst]:.3g} in coefficient {worst + 1}, and rows within the "
                f"study's ranges can give no more than {prior_precision[worst] + limits.added[worst]:.3g}"
            )
    if limits.prior_sds is None:
        return None
    if not ledger.is_proper(q):
        # robust losses have factors of negative precision; with others, all that is taken out is positive
        return f"its {what} is improper" if is_plain and precision.min() < -ROUNDING * precision.max() else None
    sds = np.abs(_mean(q) - _mean(prior)) * np.sqrt(prior_precision)
    if sds.max() > limits.prior_sds:
        worst = int(np.argmax(sds))
        return (
            f"the mean of its {what} is {sds[worst]:.3g} prior standard deviations out in coefficient {worst + 1}, and "
            f"{limits.prior_sds:g} are answered; scale the columns, or widen the prior of the study"
        )
    return None


@dataclass(frozen=True)
class ServerBounds:
    """What the server holds a client's reply against.

    A posterior that the clients would not answer would stop all of them, so the reply that makes it so is refused. And
    the factor of a log-concave likelihood is positive semidefinite: another one could take away what others have said.

    Attributes:
        study: what was agreed.
        scaling: of its columns.
        algorithm: the method.
    """

    study: Study
    scaling: Scaling
    algorithm: Algorithm

    def problem_with(self, posterior: Any) -> str | None:
        """Why clients would not answer this posterior, or None."""
        limits = bounds(self.study, self.scaling)
        if limits.prior_sds is None and limits.added is None:
            return None
        return _problem_with("posterior", posterior, self.algorithm.prior, limits, _is_plain(self.study))

    def problem_with_reply(self, message: Message, reply: Reply) -> str | None:
        """Why no rows can have given this reply, or None."""
        row, family = message.inputs.entry, self.study.model.family
        if row is None or family is None or not _is_plain(self.study) or not family.is_log_concave:
            return None
        precision = np.asarray((row * reply.update.delta).precision, float)
        smallest = np.linalg.eigvalsh(precision)[0] if precision.ndim == 2 else precision.min()
        largest = np.abs(np.asarray(message.inputs.posterior.precision)).max()
        if smallest < -ROUNDING * max(largest, np.abs(precision).max()):
            return f"its factor has the negative precision {smallest:.3g}, which no rows give"
        return None


def problem_with_scaling(study: Study, table: Table, scaling: Scaling) -> str | None:
    """Why the rows cannot have been scaled so, or None.

    N s^2 = sum over all rows of (x - m)^2, which is at least the same sum over this client's rows.
    """
    rules = study.scaling_rules
    if scaling.outcome is not None:
        rules = rules | {scaling.outcome.name: study.outcome_rule}
    federated = []
    for column in scaling.before_design:
        rule = rules.get(column.name)
        if rule is None or (
            isinstance(rule, FixedScaling) and (column.centre, column.scale) != (rule.centre, rule.scale)
        ):
            return f"its scaling of column '{column.name}' is not the study's"
        if not isinstance(rule, FixedScaling):
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
            if not around <= most * column.scale**2 * (1 + ROUNDING):  # also where one of them is NaN
                return f"its scaling of column '{column.name}' cannot come from the sums of at most {most:,} rows"
    return None


def fingerprint(study: Study, table: Table) -> Callable[[bytes], str]:
    """A keyed fingerprint of the rows that the study uses, the same for every order of them."""

    def of(key: bytes) -> str:
        rows: Rows = read_rows(study.used_columns, table)
        cells = [[repr(cell) for cell in rows.values[column.name].tolist()] for column in study.used_columns]
        lines = sorted("\x1f".join(row) for row in zip(*cells, strict=True))
        return hmac.new(key, "\x1e".join(lines).encode(), hashlib.sha256).hexdigest()

    return of


def _is_plain(study: Study) -> bool:
    """Whether the posterior is that of the likelihood."""
    choice = study.algorithm
    parts = [(choice.loss, "nll"), (choice.divergence, "kl"), (choice.server_divergence, "kl")]
    return all(part is None or part.word == word for part, word in parts)


@lru_cache(maxsize=64)
def _largest(study: Study, scaling: Scaling) -> tuple[np.ndarray | None, str]:
    """The largest |x_j| of each coefficient over the declared ranges, the ones of an intercept first; or why not."""
    assert study.model.formula is not None
    design = FormulaEncoding(study.model.formula, study.used_columns, scaling).design
    rng = np.random.default_rng(0)
    open_ended = [column.name for column in design.columns if not _has_range(column)]
    if open_ended:
        return None, f"no range is declared for {', '.join(open_ended)}"
    values = {column.name: _corners(rng, column) for column in design.columns}
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


def _diagonal(q: Any) -> np.ndarray:
    precision = np.asarray(q.precision, float)
    return np.diagonal(precision) if precision.ndim == 2 else precision


def _mean(q: Any) -> np.ndarray:
    precision, precision_mean = np.asarray(q.precision, float), np.asarray(q.precision_mean, float)
    return np.linalg.solve(precision, precision_mean) if precision.ndim == 2 else precision_mean / precision
