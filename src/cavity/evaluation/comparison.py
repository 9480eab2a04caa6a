"""Comparing models without pooling data: the evidence of a model is a sum of numbers that its clients report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cavity.core import Data
from cavity.errors import CavityError
from cavity.fit.fit import Fit


@dataclass(frozen=True)
class Comparison:
    """Models of the same rows by their evidence, the best first; `print` shows a table.

    Attributes:
        names: of the models.
        log_evidence: of each model, in nats.
        remarks: notes below the table.
    """

    names: tuple[str, ...]
    log_evidence: Float[np.ndarray, " m"]
    remarks: tuple[str, ...] = ()

    @property
    def behind(self) -> Float[np.ndarray, " m"]:
        """The difference of each model to the best one, in nats."""
        return self.log_evidence[0] - self.log_evidence

    @property
    def probability(self) -> Float[np.ndarray, " m"]:
        """The probability of each model, if one of them is right and all were equally likely before the data."""
        odds = np.exp(-self.behind)
        return odds / odds.sum()

    def __str__(self) -> str:
        width = max(len("model"), *map(len, self.names))
        lines = [f"{'model':<{width}}  {'log evidence':>12}  {'behind':>10}  {'odds against':>12}  {'probability':>11}"]
        rows = zip(self.names, self.log_evidence, self.behind, self.probability, strict=True)
        with np.errstate(over="ignore"):
            for name, found, behind, probability in rows:
                numbers = f"{found:>12.3f}  {behind:>10.3f}  {np.exp(behind):>12.4g}  {probability:>11.4f}"
                lines.append(f"{name:<{width}}  {numbers}")
        return "\n".join([*lines, *(f"note: {remark}" for remark in self.remarks)])


def compare(fits: Mapping[str, Fit], *, num_draws: int | None = None, seed: int = 0) -> Comparison:
    """Compare models of the same rows by their evidence.

    Models may differ in features, likelihood and prior. Each must have a proper prior; the evidence depends on its
    width. The outcome must be the same: not one in metres and one in feet.

    Args:
        fits: name -> fit.
        num_draws: estimate each evidence from this many importance weights, which takes one more exchange with the
            clients; None uses the free energies, each too low by the KL divergence of the fit from its posterior.
        seed: random seed of the draws.

    Returns:
        The comparison.

    Example:
        >>> import cavity
        >>> rng = np.random.default_rng(0)
        >>> clients = {"leeds": rng.normal(1.0, 1.0, (20, 1)), "york": rng.normal(1.0, 1.0, (30, 1))}
        >>> model = cavity.models.normal_location
        >>> fits = {f"sd {s}": cavity.run(cavity.PVI(model(noise_sd=s)), clients) for s in (1.0, 3.0)}
        >>> cavity.compare(fits).names
        ('sd 1.0', 'sd 3.0')
    """
    if len(fits) < 2:
        raise CavityError(f"a comparison needs at least two fits, not {len(fits)}")
    _check_same_rows(fits)
    remarks = [
        f"{name} has not converged; continue with fit.refine()" for name, fit in fits.items() if not fit.converged
    ]
    found = {name: fit.log_evidence for name, fit in fits.items()}
    if num_draws is None:
        remarks.append("free energies: lower bounds, exact where the family contains the posterior")
    else:
        weights = {name: fit.importance_weights(num_draws, seed) for name, fit in fits.items()}
        found = {name: weighed.log_evidence for name, weighed in weights.items()}
        remarks += [
            f"{name}: Pareto k = {weighed.pareto_k:.2f} is above {weighed.limit:.2f}: so few draws do not "
            "determine its evidence; see its fit.verdict"
            for name, weighed in weights.items()
            if weighed.pareto_k > weighed.limit
        ]
    names = sorted(found, key=lambda name: -found[name])
    return Comparison(tuple(names), np.array([found[name] for name in names]), tuple(remarks))


def _check_same_rows(fits: Mapping[str, Fit]) -> None:
    """Raise CavityError unless all fits have the same clients with as many rows."""
    (first, reference), *others = fits.items()
    for name, fit in others:
        if unlike := set(fit.client_names) ^ set(reference.client_names):
            raise CavityError(
                f"{first!r} and {name!r} differ in their clients ({', '.join(sorted(unlike))}); evidence is compared "
                "on the same rows"
            )
        here, there = _data(reference), _data(fit)
        if here is None or there is None:
            continue  # rows that are not in this process cannot be counted
        for client in fit.client_names:
            ours, theirs = (float(np.sum(clients[client].weight)) for clients in (here, there))
            if ours != theirs:
                raise CavityError(
                    f"client {client!r} has {ours:g} rows in {first!r} and {theirs:g} in {name!r}; evidence is "
                    "compared on the same rows"
                )


def _data(fit: Fit) -> Mapping[str, Data] | None:
    return None if fit.clients is None else fit.population("compare fits").data
