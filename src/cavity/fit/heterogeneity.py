"""Do the clients agree? The shift of each coefficient when a client is left out, compared with chance.

With q(theta) = N(m, V) of all clients and N(m_k, V_k) without client k, the shift of the mean is s = m - m_k. Where the
clients agree and the likelihood is near a Gaussian in theta, s is N(0, V_k - V): the rows of client k are independent
of the others, and add the precision V^-1 - V_k^-1. So

    z_j = s_j / sqrt((V_k - V)_jj)

is standard normal for every coefficient j. A client is flagged if max_j |Z_j| of Z ~ N(0, correlation of V_k - V)
exceeds its largest |z_j| with a probability below `alpha`: this share of clients is flagged if all agree. Clients of
real studies differ more than by chance (other patients, other instruments); a flag is a reason to look.

A regression may have further parameters: the sd of the noise, shapes, thresholds. They do not count for the flag, and
the z of coefficients are given them, from the blocks of V^-1 and V_k^-1 that belong to the coefficients. The client's
block between both is a sum over few rows which is large by chance in just those clients whose coefficients are far off;
in the pooled precision this cancels. With A_k, B_k the blocks of the client's precision and A, B those of all, the
variance of z would differ from 1 by a term in B_k - A_k A^-1 B, which only makes it smaller.

`cavity reproduce families` has the share of flags in simulated studies.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from cavity import ledger
from cavity.distributions.full import FullGaussian
from cavity.errors import CavityError, UnsuitableError, printable
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.fit.presentation import presentation_of

ALPHA = 0.01
NUM_DRAWS = 4000
NO_INFORMATION = 1e-9  # relative to the variance of a coefficient: less is rounding


@dataclass(frozen=True)
class ClientDifference:
    """How a client differs from the others.

    Attributes:
        name: the client.
        shift: by coefficient: the mean with this client less the mean without it, on the scale of `Fit.reported`.
        z: by coefficient: the shift in standard deviations of what chance gives; 0 where the client has no
            information on it. Those of coefficients are given the other parameters.
        p_value: the probability of a larger |z| of any coefficient if the clients agree.
        coefficients: the parameters that count for it.
        flagged: whether it is below `alpha`.
    """

    name: str
    shift: dict[str, float]
    z: dict[str, float]
    p_value: float
    flagged: bool
    coefficients: tuple[str, ...]

    @property
    def strongest(self) -> str:
        """The coefficient with the largest |z|."""
        return max(self.coefficients, key=lambda name: abs(self.z[name]))


@dataclass(frozen=True)
class Heterogeneity:
    """All clients. `print(...)` shows a table; a notebook shows it as HTML.

    `heterogeneity["york"]` is one client.

    Attributes:
        clients: one per client.
        alpha: the share of clients that are flagged if all agree.
    """

    clients: tuple[ClientDifference, ...]
    alpha: float

    def __getitem__(self, name: str) -> ClientDifference:
        for client in self.clients:
            if client.name == name:
                return client
        raise KeyError(f"no client {name!r}; choose one of: {', '.join(client.name for client in self.clients)}")

    def __iter__(self) -> Iterator[ClientDifference]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def flagged(self) -> tuple[str, ...]:
        """The clients that are flagged."""
        return tuple(client.name for client in self.clients if client.flagged)

    @property
    def _rows(self) -> list[list[str]]:
        rows = []
        for client in self.clients:
            at = client.strongest
            numbers = [f"{client.shift[at]:.4g}", f"{client.z[at]:.2f}", f"{client.p_value:.2g}"]
            rows.append([printable(client.name), printable(at), *numbers, "differs" if client.flagged else ""])
        return rows

    def __str__(self) -> str:
        rows = [list(_HEADER), *self._rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            left, right = row[:2], row[2:]
            cells = [f"{cell:<{width}}" for cell, width in zip(left, widths, strict=False)]
            cells += [f"{cell:>{width}}" for cell, width in zip(right, widths[2:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, f"note: {self._note}"])

    @property
    def _note(self) -> str:
        return f"if all clients agree, {self.alpha:.3g} of them are flagged on average; real sites often differ"

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        rows = [("th", list(_HEADER)), *(("td", row) for row in self._rows)]
        body = "".join(
            "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>" for tag, row in rows
        )
        return f"<table>{body}</table><p>note: {html.escape(self._note)}</p>"


_HEADER = ("client", "coefficient", "shift", "z", "p", "")


def heterogeneity(fit: Fit, alpha: float = ALPHA) -> Heterogeneity:
    """Compare each client with the others.

    Args:
        fit: a converged fit with a factor per client, and a full covariance.
        alpha: the share of clients that are flagged if all agree.

    Returns:
        The clients.

    Raises:
        CavityError: where the fit has no factors at the server, no covariance, or fewer than two clients.
    """
    if not 0 < alpha < 1:
        raise CavityError(f"alpha is a probability between 0 and 1, not {alpha}")
    if fit.server.held_by_clients:
        raise CavityError(
            'the clients keep their factors, so the server cannot remove one; use run(..., factors="server")'
        )
    if len(fit.client_names) < 2:
        raise CavityError("one client has no others to compare it with")
    algorithm, presentation = method.with_factors(fit.algorithm), presentation_of(fit)
    if not isinstance(fit.posterior, FullGaussian):
        raise UnsuitableError('heterogeneity needs a Gaussian posterior with a full covariance; use covariance="full"')
    everyone, names = _moments(fit.reported), fit.algorithm.model.parameter_names
    counts, found = method.coefficient_names(fit.algorithm), []
    for name in fit.client_names:
        without = ledger.withdraw(algorithm, fit.server, name)
        if not ledger.is_proper(without.posterior):
            raise CavityError(
                f"without {name!r} the posterior is improper: the others and the prior leave coefficients undetermined"
            )
        others = _moments(presentation.reported(without.posterior))
        found.append(client_difference(name, names, everyone, others, counts, alpha))
    return Heterogeneity(tuple(found), alpha)


def _moments(posterior: FullGaussian) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    return np.asarray(posterior.mean, float), np.asarray(posterior.covariance, float)


def client_difference(
    name: str,
    names: Sequence[str],
    everyone: tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]],
    others: tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]],
    coefficients: Sequence[str],
    alpha: float = ALPHA,
) -> ClientDifference:
    """Compare the shift that a client causes with chance.

    Args:
        name: the client.
        names: of the parameters.
        everyone: mean and covariance of the posterior.
        others: those without the client.
        coefficients: which parameters count for the flag.
        alpha: the probability below which the client is flagged.

    Returns:
        The comparison.
    """
    (mean, covariance), (rest, spread) = everyone, others
    z, correlation = _scores(mean - rest, spread - covariance, np.diag(spread))
    counts = np.array([parameter in coefficients for parameter in names])
    if not counts.all():
        block = np.ix_(counts, counts)
        precision = np.linalg.inv(spread)
        given, given_rest = np.linalg.inv(np.linalg.inv(covariance)[block]), np.linalg.inv(precision[block])
        # the shift is V_k times the gradient of the client's log factor at the mean
        shift = given_rest @ (precision @ (mean - rest))[counts]
        z[counts], correlation = _scores(shift, given_rest - given, np.diag(given_rest))
    p_value = largest_p_value(float(np.max(np.abs(z[counts]), initial=0.0)), correlation)
    return ClientDifference(
        name,
        dict(zip(names, (mean - rest).tolist(), strict=True)),
        dict(zip(names, z.tolist(), strict=True)),
        p_value,
        p_value < alpha,
        tuple(coefficients),
    )


def _scores(
    shift: Float[np.ndarray, " d"], chance: Float[np.ndarray, "d d"], variance: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "i i"]]:
    """Shifts in standard deviations of chance, and the correlation of those of which the client has information."""
    informed = np.diag(chance) > NO_INFORMATION * variance
    z, sd = np.zeros(len(shift)), np.sqrt(np.diag(chance)[informed])
    z[informed] = shift[informed] / sd
    return z, chance[np.ix_(informed, informed)] / np.outer(sd, sd)


def largest_p_value(z: float, correlation: Float[np.ndarray, "d d"]) -> float:
    """P(max |Z_j| > z) for Z ~ N(0, correlation), by draws in which at least one |Z_j| is larger.

    With p the probability that a given |Z_j| is, and Z drawn given this of a j at random, the probability is d p times
    the mean of 1 / (number of j with |Z_j| > z) (Owen, Maximov and Chertkov, 2019). So it lies between p and d p, and
    its relative error is at most sqrt((d - 1) / n) with n draws, however small it is. The tail of Z_j is drawn as
    sqrt(z^2 - 2 log u) with weights 1 / Z_j.

    Args:
        z: the largest absolute value.
        correlation: of Z; slightly indefinite ones, from rounding, are projected.

    Returns:
        The probability.
    """
    size = len(correlation)
    if size == 0:
        return 1.0
    p = math.erfc(z / math.sqrt(2))
    if size == 1 or p == 0:
        return p
    values, vectors = np.linalg.eigh(correlation)
    uniform, normal = _base_draws(size)
    draws = (normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    if z < 1:  # not rare
        return float(np.mean(np.max(np.abs(draws), axis=1) > z))
    rows = np.arange(NUM_DRAWS)
    given = rows % size
    tail = np.sqrt(z**2 - 2 * np.log(uniform))  # the lower tail is the same by symmetry
    draws += correlation[given] * (tail - draws[rows, given])[:, None]
    exceeds = np.abs(draws) > z
    exceeds[rows, given] = True
    return min(1.0, size * p * float(np.average(1 / exceeds.sum(axis=1), weights=1 / tail)))


@lru_cache(maxsize=32)
def _base_draws(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return 1 - rng.uniform(size=NUM_DRAWS), rng.standard_normal((NUM_DRAWS, size))
