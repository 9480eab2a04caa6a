"""A posterior as a table: mean, standard deviation and central interval of every parameter."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from cavity.core import Distribution
from cavity.core.base_model import Ratios
from cavity.core.intervals import DEFAULT_LEVEL, check_level, half_width, tails
from cavity.distributions.gaussian import gaussian_or_none
from cavity.errors import ImproperError, printable
from cavity.evaluation import diagnostics
from cavity.ledger import is_proper

if TYPE_CHECKING:
    import pandas

PRIOR_CONFLICT = 3.0  # prior standard deviations from the prior mean at which a remark is made
DISAGREE = "prior and data disagree: check the units of the data, and the scale of the prior"
QUANTILE_DRAWS = 20_000  # for families without closed-form quantiles


@dataclass(frozen=True)
class Estimate:
    """One parameter.

    Attributes:
        name: of the parameter.
        mean: posterior mean; of a ratio, the exponential of the coefficient's mean.
        sd: posterior standard deviation; of a ratio, that of its logarithm.
        lower: the lower end of a central interval.
        upper: its upper end.
    """

    name: str
    mean: float
    sd: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Coefficients:
    """Mean and covariance of all parameters in the units of the data, in the model's order; float64.

    Attributes:
        names: one per parameter.
        mean: posterior means.
        covariance: the posterior covariance.
    """

    names: tuple[str, ...]
    mean: Float[np.ndarray, " d"]
    covariance: Float[np.ndarray, "d d"]

    @property
    def sd(self) -> Float[np.ndarray, " d"]:
        """Posterior standard deviations."""
        return np.sqrt(np.diagonal(self.covariance))


@dataclass(frozen=True)
class Summary:
    """All parameters, in the model's order. `print(summary)` shows a table; a notebook shows it as HTML.

    `summary["age"]` is the estimate of one parameter.

    Attributes:
        estimates: one per parameter.
        level: the probability that each interval has.
        remarks: notes below the table.
        ratio: what the numbers are if they are exponentials of coefficients ("odds ratio"); otherwise None.
        checks: computes further notes, which takes seconds; called when the table is shown.
    """

    estimates: tuple[Estimate, ...]
    level: float
    remarks: tuple[str, ...] = ()
    ratio: str | None = None
    checks: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    def __getitem__(self, name: str) -> Estimate:
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"no parameter {name!r}; choose one of: {', '.join(e.name for e in self.estimates)}")

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def __str__(self) -> str:
        names, header = self._names, self._header
        width, widths = max(map(len, [header[0], *names])), [max(10, len(title)) for title in header[1:]]
        lines = [f"{header[0]:<{width}}  " + "  ".join(f"{t:>{w}}" for t, w in zip(header[1:], widths, strict=True))]
        for name, row in zip(names, self._numbers, strict=True):
            lines.append(f"{name:<{width}}  " + "  ".join(f"{n:>{w}}" for n, w in zip(row, widths, strict=True)))
        return "\n".join([*lines, *(f"note: {remark}" for remark in self._notes)])

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        head = _html_row("th", self._header)
        body = [_html_row("td", [name, *row]) for name, row in zip(self._names, self._numbers, strict=True)]
        notes = "".join(f"<p>note: {html.escape(remark)}</p>" for remark in self._notes)
        return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>{notes}"

    @property
    def _header(self) -> tuple[str, ...]:
        middle = ("mean", "sd") if self.ratio is None else (self.ratio,)
        return ("parameter", *middle, *(f"{100 * tail:.6g}%" for tail in tails(self.level)))

    @property
    def _names(self) -> list[str]:
        return [printable(estimate.name) for estimate in self.estimates]  # names may come from a file

    @property
    def _numbers(self) -> list[list[str]]:
        shown = attrgetter("mean", *(["sd"] if self.ratio is None else []), "lower", "upper")
        return [[f"{value:.4g}" for value in shown(estimate)] for estimate in self.estimates]

    @property
    def _notes(self) -> tuple[str, ...]:
        return (*self.remarks, *self.checks())

    def exponentiated(self, ratios: Ratios) -> Summary:
        """The exponentials of the coefficients that are logs of ratios, with their intervals.

        Args:
            ratios: which they are.
        """
        found = [
            replace(e, mean=math.exp(e.mean), lower=math.exp(e.lower), upper=math.exp(e.upper))
            for e in self.estimates
            if e.name in ratios.names
        ]
        others = [e.name for e in self.estimates if e.name not in ratios.names]
        left_out = f"not ratios, and left out: {', '.join(others)}; see summary()"
        return replace(
            self, estimates=tuple(found), ratio=ratios.title, remarks=(*self.remarks, *([left_out] if others else []))
        )

    def to_frame(self) -> pandas.DataFrame:
        """The table as a pandas data frame (needs pandas).

        Returns:
            The columns mean, sd, lower and upper, indexed by parameter.
        """
        import pandas

        rows = [(e.name, e.mean, e.sd, e.lower, e.upper) for e in self.estimates]
        return pandas.DataFrame(rows, columns=["parameter", "mean", "sd", "lower", "upper"]).set_index("parameter")


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def summarise(
    posterior: Distribution,
    prior: Distribution | None,
    names: tuple[str, ...],
    level: float = DEFAULT_LEVEL,
    remarks: tuple[str, ...] = (),
    *,
    moments: Callable[[Distribution], tuple[np.ndarray, np.ndarray]] = diagnostics.moments,
) -> Summary:
    """The summary of a posterior.

    Args:
        posterior: a proper distribution.
        prior: adds a remark for every parameter on which prior and data disagree; None adds none.
        names: one per parameter.
        level: the probability that each interval has.
        remarks: notes below the table.
        moments: gives mean and standard deviation of each parameter, in the units to be shown.

    Returns:
        The summary.
    """
    level = check_level(level)
    if not is_proper(posterior):
        raise ImproperError(
            "the posterior is improper: the prior is improper, and the clients that replied do not determine every "
            "parameter; wait for more clients, or give a proper prior"
        )
    mean, sd = moments(posterior)
    lower, upper = _interval(posterior, mean, sd, level)
    prior_mean, prior_sd = (mean, sd) if prior is None else moments(prior)
    far = np.abs(mean - prior_mean) > PRIOR_CONFLICT * prior_sd
    if far.any():
        which = ", ".join(name for name, is_far in zip(names, far, strict=True) if is_far)
        remarks = (*remarks, f"{which}: over {PRIOR_CONFLICT:g} prior sd from the prior mean; {DISAGREE}")
    return _summary(names, (mean, sd, lower, upper), level, remarks)


def summarise_draws(
    draws: np.ndarray, names: tuple[str, ...], level: float = DEFAULT_LEVEL, remarks: tuple[str, ...] = ()
) -> Summary:
    """The summary of posterior draws.

    Args:
        draws: one row per draw, one column per parameter.
        names: one per parameter.
        level: the probability that each interval has.
        remarks: notes below the table.

    Returns:
        The summary.
    """
    level = check_level(level)
    lower, upper = np.quantile(draws, tails(level), axis=0)
    return _summary(names, (draws.mean(axis=0), draws.std(axis=0), lower, upper), level, remarks)


def _summary(names: tuple[str, ...], columns: Sequence[np.ndarray], level: float, remarks: tuple[str, ...]) -> Summary:
    rows = zip(names, *columns, strict=True)
    return Summary(tuple(Estimate(name, *map(float, numbers)) for name, *numbers in rows), level, remarks)


def _interval(posterior: Distribution, mean: np.ndarray, sd: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    if gaussian_or_none(posterior) is not None:
        half = half_width(level) * sd
        return mean - half, mean + half
    with jax.enable_x64(True):
        draws = posterior.sample(jax.random.key(0), (QUANTILE_DRAWS,))
        flat = np.asarray(jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws))
    lower, upper = np.quantile(flat, tails(level), axis=0)
    return lower, upper
