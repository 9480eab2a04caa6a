"""Do the clients agree? The shift of each coefficient when a client is left out, compared with chance.

With q(theta) = N(m, V) of all clients and N(m_k, V_k) without client k, the shift of the mean is s = m - m_k. Where the
clients agree and the likelihood is near a Gaussian in theta, s is N(0, V_k - V): the rows of client k are independent
of the others, and add the precision V^-1 - V_k^-1. So

    z_j = s_j / sqrt((V_k - V)_jj)

is standard normal for every coefficient j. A client is flagged if its largest |z_j| is one that fewer than `alpha` of
the draws of N(0, correlation of V_k - V) exceed: at most that share of clients is flagged if all agree. Clients of real
studies differ more than by chance (other patients, other instruments); a flag is a reason to look.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cavity import ledger
from cavity.distributions.full import FullGaussian
from cavity.errors import CavityError, UnsuitableError, printable
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.fit.presentation import presentation_of

ALPHA = 0.01
NUM_DRAWS = 100_000
NO_INFORMATION = 1e-9  # relative to the variance of a coefficient: less is rounding


@dataclass(frozen=True)
class ClientDifference:
    """How a client differs from the others.

    Attributes:
        name: the client.
        shift: by coefficient: the mean with this client less the mean without it, on the scale of `Fit.reported`.
        z: by coefficient: the shift in standard deviations of what chance gives; 0 where the client has no
            information on it.
        p_value: the probability of a larger |z| of any coefficient if the clients agree.
        flagged: whether it is below `alpha`.
    """

    name: str
    shift: dict[str, float]
    z: dict[str, float]
    p_value: float
    flagged: bool

    @property
    def strongest(self) -> str:
        """The coefficient with the largest |z|."""
        return max(self.z, key=lambda name: abs(self.z[name]))


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
    mean, covariance = _moments(fit.reported)
    names = list(fit.algorithm.model.parameter_names)
    found = []
    for name in fit.client_names:
        without = ledger.withdraw(algorithm, fit.server, name)
        if not ledger.is_proper(without.posterior):
            raise CavityError(
                f"without {name!r} the posterior is improper: the others and the prior leave coefficients undetermined"
            )
        others, spread = _moments(presentation.reported(without.posterior))
        found.append(_difference(name, names, mean - others, spread - covariance, np.diag(spread), alpha))
    return Heterogeneity(tuple(found), alpha)


def _moments(posterior: FullGaussian) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    return np.asarray(posterior.mean, float), np.asarray(posterior.covariance, float)


def _difference(
    name: str, names: list[str], shift: np.ndarray, chance: np.ndarray, variance: np.ndarray, alpha: float
) -> ClientDifference:
    informed = np.diag(chance) > NO_INFORMATION * variance
    z = np.zeros(len(shift))
    sd = np.sqrt(np.diag(chance)[informed])
    z[informed] = shift[informed] / sd
    correlation = chance[np.ix_(informed, informed)] / np.outer(sd, sd)
    p_value = largest_p_value(float(np.max(np.abs(z), initial=0.0)), correlation)
    return ClientDifference(
        name,
        dict(zip(names, shift.tolist(), strict=True)),
        dict(zip(names, z.tolist(), strict=True)),
        p_value,
        p_value < alpha,
    )


def largest_p_value(z: float, correlation: Float[np.ndarray, "d d"]) -> float:
    """P(max |Z_j| > z) for Z ~ N(0, correlation): by draws, and by Bonferroni's bound where draws are too few.

    Args:
        z: the largest absolute value.
        correlation: of Z; slightly indefinite ones, from rounding, are projected.

    Returns:
        The probability.
    """
    size = len(correlation)
    if size == 0:
        return 1.0
    bound = min(1.0, size * math.erfc(z / math.sqrt(2)))
    if size == 1 or bound < 20 / NUM_DRAWS:
        return bound
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(0).standard_normal((NUM_DRAWS, size))
    exceeded = float(np.mean(np.max(np.abs(normal @ root.T), axis=1) > z))
    return min(bound, exceeded + 2 * math.sqrt(exceeded * (1 - exceeded) / NUM_DRAWS))
