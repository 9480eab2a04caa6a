"""A posterior as a table that people read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from cavity.distributions.gaussian import Gaussian
from cavity.errors import ImproperError, printable
from cavity.evaluation import diagnostics
from cavity.ledger import is_proper

if TYPE_CHECKING:
    import pandas

PRIOR_CONFLICT = 3.0  # prior standard deviations from the prior mean at which a remark is made
QUANTILE_DRAWS = 20_000  # for families without closed-form quantiles


@dataclass(frozen=True)
class Estimate:
    """One parameter: posterior mean, standard deviation, and the ends of a central interval."""

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
    """All parameters, in the model's order; `summary["age"]` is one of them, `print(summary)` a table.

    Attributes:
        estimates: one per parameter.
        level: the probability that an interval holds.
        remarks: what a reader should know besides.
        checks: finds more remarks, which take seconds; asked when the table is printed.
    """

    estimates: tuple[Estimate, ...]
    level: float
    remarks: tuple[str, ...] = ()
    checks: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    def __getitem__(self, name: str) -> Estimate:
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"there is no parameter {name!r}; there are {', '.join(e.name for e in self.estimates)}")

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def __str__(self) -> str:
        names = [printable(estimate.name) for estimate in self.estimates]  # a file's, perhaps
        width = max([len("parameter"), *map(len, names)])
        tail = f"{(1 - self.level) / 2:.1%}"
        head = f"{'parameter':<{width}}  {'mean':>10}  {'sd':>10}  {tail:>10}  {f'{(1 + self.level) / 2:.1%}':>10}"
        lines = [head]
        for name, e in zip(names, self.estimates, strict=True):
            numbers = "  ".join(f"{value:>10.4g}" for value in (e.mean, e.sd, e.lower, e.upper))
            lines.append(f"{name:<{width}}  {numbers}")
        return "\n".join([*lines, *(f"note: {remark}" for remark in (*self.remarks, *self.checks()))])

    def to_frame(self) -> pandas.DataFrame:
        """As a pandas data frame, indexed by parameter (needs pandas)."""
        import pandas

        rows = [(e.name, e.mean, e.sd, e.lower, e.upper) for e in self.estimates]
        return pandas.DataFrame(rows, columns=["parameter", "mean", "sd", "lower", "upper"]).set_index("parameter")


def summarise(
    posterior: Any,
    prior: Any,
    names: tuple[str, ...],
    level: float = 0.9,
    remarks: tuple[str, ...] = (),
    *,
    moments: Callable[[Any], tuple[np.ndarray, np.ndarray]] = diagnostics.moments,
) -> Summary:
    """The summary of a posterior; with a prior, remarks on parameters where it and the data disagree are added.

    `moments` gives mean and sd of each parameter, in the units to be shown.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1, not {level}")
    if not is_proper(posterior):
        raise ImproperError(
            "the posterior is improper: so is the prior, and the clients who replied do not tell every parameter; "
            "let more of them reply, or give a proper prior"
        )
    mean, sd = moments(posterior)
    lower, upper = _interval(posterior, mean, sd, level)
    prior_mean, prior_sd = (mean, sd) if prior is None else moments(prior)
    far = np.abs(mean - prior_mean) > PRIOR_CONFLICT * prior_sd
    if far.any():
        which = ", ".join(name for name, is_far in zip(names, far, strict=True) if is_far)
        remarks = (*remarks, f"{which}: over {PRIOR_CONFLICT:g} prior sd from the prior mean; is the prior too tight?")
    rows = zip(names, mean, sd, lower, upper, strict=True)
    return Summary(tuple(Estimate(name, *map(float, numbers)) for name, *numbers in rows), level, remarks)


def summarise_draws(
    draws: np.ndarray, names: tuple[str, ...], level: float = 0.9, remarks: tuple[str, ...] = ()
) -> Summary:
    """The summary of draws, one column per parameter."""
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1, not {level}")
    lower, upper = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    rows = zip(names, draws.mean(axis=0), draws.std(axis=0), lower, upper, strict=True)
    return Summary(tuple(Estimate(name, *map(float, numbers)) for name, *numbers in rows), level, remarks)


def _interval(posterior: Any, mean: np.ndarray, sd: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(posterior, Gaussian):
        half = NormalDist().inv_cdf((1 + level) / 2) * sd
        return mean - half, mean + half
    with jax.enable_x64(True):
        draws = posterior.sample(jax.random.key(0), (QUANTILE_DRAWS,))
        flat = np.asarray(jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws))
    lower, upper = np.quantile(flat, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return lower, upper
