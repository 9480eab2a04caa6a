"""How the posterior of a fit is shown and used: units, names, tables, draws and predictions.

There is one class per kind of posterior: Gaussian coefficients, other families over named parameters, and latents that
are computed on an unconstrained scale.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import singledispatch

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from cavity import ledger
from cavity.algorithms.bound import Globals
from cavity.core import Distribution, LatentModel, Model
from cavity.distributions.gaussian import Gaussian, gaussian_or_none
from cavity.errors import CavityError
from cavity.evaluation import diagnostics
from cavity.fit import local_posterior, method, prediction
from cavity.fit.fit import Fit
from cavity.fit.summary import Coefficients, Summary, summarise, summarise_draws
from cavity.models.mixed.marginal import MarginalModel
from cavity.models.numpyro.globals_only import GlobalsOnly
from cavity.models.numpyro.latent_model import NumpyroModel

SUMMARY_DRAWS = 10_000
UNCONSTRAINED = "the summary is on the model's own scale; fit.posterior is of unconstrained parameters"


class Presentation(abc.ABC):
    """How the posterior of a fit is shown and used."""

    @property
    @abc.abstractmethod
    def units(self) -> str:
        """The units of the summary, and those of `Fit.posterior` where they differ."""

    @property
    def gaussian(self) -> Gaussian | None:
        """The posterior of the computed parameters; None where it is not Gaussian."""
        return None

    @property
    def unconstrained(self) -> NumpyroModel | None:
        """The NumPyro model whose unconstrained latents are the computed parameters; None for other models."""
        return None

    @abc.abstractmethod
    def reported(self, q: PyTree) -> PyTree:
        """A distribution of the model's parameters as one of the parameters in the units of the data."""

    @abc.abstractmethod
    def coefficients(self) -> Coefficients:
        """Mean and covariance of all parameters; raises CavityError where there are no coefficients."""

    @abc.abstractmethod
    def prior_scales(self) -> dict[str, float]:
        """The prior standard deviation of every parameter, by name."""

    @abc.abstractmethod
    def summary(self, level: float, remarks: tuple[str, ...]) -> Summary:
        """The table of all parameters."""

    @abc.abstractmethod
    def draws(self, num_draws: int, seed: int) -> dict[str, Array]:
        """Posterior draws by name, with the draws as leading axis."""

    @abc.abstractmethod
    def remarks(self, fit: Fit) -> list[str]:
        """Notes on convergence and units."""

    @abc.abstractmethod
    def predict(
        self, x: PyTree, num_draws: int | None, seed: int, point: bool, level: float
    ) -> prediction.AnyPrediction:
        """The prediction at new rows; see `Fit.predict`."""


@dataclass(frozen=True)
class FamilyPresentation(Presentation):
    """A distribution of named parameters.

    Attributes:
        model: knows names and units.
        posterior: in the model's own units.
        prior: in the same units.
        prior_is_base: whether the prior is outside the family, so that `prior` is only the base of its correction.
    """

    model: Model
    posterior: PyTree
    prior: PyTree
    prior_is_base: bool

    @property
    def units(self) -> str:
        return "; ".join(self.model.remarks) or "parameters are in the units of the data as they were given"

    def reported(self, q: PyTree) -> PyTree:
        with jax.enable_x64(True):
            return self.model.reported(q)

    def coefficients(self) -> Coefficients:
        raise _no_coefficients(self.model)

    def prior_scales(self) -> dict[str, float]:
        _, scales = diagnostics.moments(self.reported(self.prior))
        return dict(zip(self.model.parameter_names, scales.tolist(), strict=True))

    def summary(self, level: float, remarks: tuple[str, ...]) -> Summary:
        prior = None if self.prior_is_base else self.reported(self.prior)
        return summarise(self.reported(self.posterior), prior, self.model.parameter_names, level, remarks)

    def draws(self, num_draws: int, seed: int) -> dict[str, Array]:
        with jax.enable_x64(True):
            draws = self.reported(self.posterior).sample(jax.random.key(seed), (num_draws,))
            flat = jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)
        return dict(zip(self.model.parameter_names, flat.T, strict=True))

    def remarks(self, fit: Fit) -> list[str]:
        last, remarks = fit.history[-1] if fit.history else None, []
        if last is not None and not fit.doubts and not fit.converged:
            known = np.isfinite(last["gap"])
            why = f"the largest gap is {last['gap']:.1e} nats" if known else "the gap is not known yet"
            remarks.append(f"not converged: {why}; continue with fit.refine()")
        if last is not None and last["unconverged"]:
            remarks.append(f"{last['unconverged']} local solves ended at their step limit in the last round")
        return [*remarks, *self.model.remarks]

    def predict(
        self, x: PyTree, num_draws: int | None, seed: int, point: bool, level: float
    ) -> prediction.AnyPrediction:
        return prediction.predict(self.model, self.posterior, x, num_draws, seed, point, level)


@dataclass(frozen=True)
class GaussianPresentation(FamilyPresentation):
    """A Gaussian of coefficients, whose mean and covariance the model converts to the units of the data."""

    @property
    def gaussian(self) -> Gaussian:
        return self.posterior

    def coefficients(self) -> Coefficients:
        return self._coefficients(self.posterior)

    def prior_scales(self) -> dict[str, float]:
        _, scales = self._moments(self.prior)
        return dict(zip(self.model.parameter_names, scales.tolist(), strict=True))

    def summary(self, level: float, remarks: tuple[str, ...]) -> Summary:
        prior = None if self.prior_is_base else self.prior
        names = self.model.parameter_names
        return summarise(self.posterior, prior, names, level, remarks, moments=self._moments)

    def _coefficients(self, q: Distribution) -> Coefficients:
        with jax.enable_x64(True):
            return Coefficients(self.model.parameter_names, *self.model.reported_moments(ledger.to_host(q)))

    def _moments(self, q: Distribution) -> tuple[np.ndarray, np.ndarray]:
        found = self._coefficients(q)
        return found.mean, found.sd


class _Constrained:
    """Latents that are computed on an unconstrained scale and shown as the model's author wrote them."""

    model: GlobalsOnly | MarginalModel
    posterior: PyTree

    @property
    def units(self) -> str:
        return UNCONSTRAINED

    @property
    def unconstrained(self) -> NumpyroModel | None:
        return self.model.latent if isinstance(self.model.latent, NumpyroModel) else None

    def summary(self, level: float, remarks: tuple[str, ...]) -> Summary:
        return _summary_of(self.draws(SUMMARY_DRAWS, 0), level, remarks)

    def draws(self, num_draws: int, seed: int) -> dict[str, Array]:
        with jax.enable_x64(True):
            return jax.vmap(self.model.constrain)(self.posterior.sample(jax.random.key(seed), (num_draws,)))


class ConstrainedFamily(_Constrained, FamilyPresentation):
    """A distribution of unconstrained latents."""


class ConstrainedGaussian(_Constrained, GaussianPresentation):
    """A Gaussian of unconstrained latents, with coefficients on that scale."""


class MarginalPresentation(ConstrainedGaussian):
    """The shared parameters of a model whose local latents are integrated out, on the scale of the model's author."""

    @property
    def units(self) -> str:
        return UNCONSTRAINED

    def coefficients(self) -> Coefficients:
        """Moments of draws: a standard deviation or a correlation is no linear function of what is computed."""
        draws = self.draws(SUMMARY_DRAWS, 0)
        flat = _flat(draws)
        covariance = np.atleast_2d(np.cov(flat, rowvar=False))
        return Coefficients(local_posterior.latent_names(draws), flat.mean(axis=0), covariance)

    def prior_scales(self) -> dict[str, float]:
        raise CavityError(f"the priors of {type(self.model.latent).__name__} are in the model, not all of them normal")


@dataclass(frozen=True)
class LatentPresentation(Presentation):
    """Global latents and learned parameters of a model whose local latents stay at the clients.

    Attributes:
        model: the model.
        posterior: q(Z_G) and theta.
    """

    model: LatentModel
    posterior: Globals

    @property
    def gaussian(self) -> Gaussian:
        return self.posterior.q.gaussian

    @property
    def units(self) -> str:
        return UNCONSTRAINED

    def reported(self, q: PyTree) -> PyTree:
        return q

    def coefficients(self) -> Coefficients:
        raise _no_coefficients(self.model)

    def prior_scales(self) -> dict[str, float]:
        raise CavityError(f"the priors of {type(self.model).__name__} are in the model; there are no prior scales")

    def summary(self, level: float, remarks: tuple[str, ...]) -> Summary:
        return _summary_of(self.draws(SUMMARY_DRAWS, 0), level, remarks)

    def draws(self, num_draws: int, seed: int) -> dict[str, Array]:
        return local_posterior.global_draws(self.model, self.posterior, num_draws, seed)[1]

    def remarks(self, fit: Fit) -> list[str]:
        samples = method.structured(fit.algorithm).structured.num_samples
        remarks = [f"variational, with K = {samples} importance sample{'' if samples == 1 else 's'} per unit"]
        remark = method.convergence_remark(fit.algorithm, fit.server)
        return remarks if fit.doubts or remark is None else [*remarks, remark]

    def predict(
        self, x: PyTree, num_draws: int | None, seed: int, point: bool, level: float
    ) -> prediction.AnyPrediction:
        # rows of a new client: all of its units are new
        num_draws = num_draws or local_posterior.DEFAULT_DRAWS
        z, _ = local_posterior.global_draws(self.model, self.posterior, num_draws, seed)
        return local_posterior.predict_rows(self.model, self.posterior, z, x, seed, level)


@dataclass(frozen=True)
class NumpyroPresentation(LatentPresentation):
    """The same for a NumPyro model, whose latents are computed on an unconstrained scale.

    Attributes:
        model: the model.
    """

    model: NumpyroModel

    @property
    def unconstrained(self) -> NumpyroModel:
        return self.model


def _summary_of(draws: dict[str, Array], level: float, remarks: tuple[str, ...]) -> Summary:
    return summarise_draws(_flat(draws), local_posterior.latent_names(draws), level, remarks)


def _flat(draws: dict[str, Array]) -> np.ndarray:
    """One row per draw, one column per parameter."""
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws))


def _no_coefficients(model: Model | LatentModel) -> CavityError:
    return CavityError(f"{type(model).__name__} has no coefficients; look at fit.summary() or fit.posterior")


def presentation_of(fit: Fit) -> Presentation:
    """How the posterior of a fit is shown and used.

    Args:
        fit: the fit.

    Returns:
        The presentation that belongs to its model and its posterior.
    """
    return _presentation(fit.algorithm.model, fit)


@singledispatch
def _presentation(model: Model | LatentModel, fit: Fit) -> Presentation:
    """The presentation for a kind of model; the types below have their own."""
    from cavity.fit.natural import NaturalPresentation  # which is a presentation

    natural = getattr(model, "natural_scale", None) is not None
    return _of_family(fit, FamilyPresentation, NaturalPresentation if natural else GaussianPresentation)


@_presentation.register(GlobalsOnly)
def _(model: GlobalsOnly, fit: Fit) -> Presentation:
    return _of_family(fit, ConstrainedFamily, ConstrainedGaussian)


@_presentation.register(MarginalModel)
def _(model: MarginalModel, fit: Fit) -> Presentation:
    return _of_family(fit, ConstrainedFamily, MarginalPresentation)


@_presentation.register(LatentModel)
def _(model: LatentModel, fit: Fit) -> Presentation:
    return LatentPresentation(model, fit.posterior)


@_presentation.register(NumpyroModel)
def _(model: NumpyroModel, fit: Fit) -> Presentation:
    return NumpyroPresentation(model, fit.posterior)


def _of_family(
    fit: Fit, otherwise: type[FamilyPresentation], if_gaussian: type[GaussianPresentation]
) -> FamilyPresentation:
    kind = otherwise if gaussian_or_none(fit.posterior) is None else if_gaussian
    return kind(fit.algorithm.model, fit.posterior, fit.server.prior, bool(method.server_entries(fit.server)))


def remarks_on(fit: Fit) -> tuple[str, ...]:
    """Notes below the summary of a fit: clients and rounds, and whether the run has converged.

    Args:
        fit: the fit.

    Returns:
        One sentence each.
    """
    remarks = [f"{_count(len(fit.client_names), 'client')}, {_count(len(fit.history), 'round')}"]
    if fit.initial_rounds:
        remarks.append(f"started at the mode, which {fit.initial_rounds} rounds before these found")
    remarks += [f"not converged: {doubt}" for doubt in fit.doubts]
    return (*remarks, *presentation_of(fit).remarks(fit))


def overview_of(fit: Fit) -> str:
    """A fit in a few lines, for the prompt.

    Args:
        fit: the fit.

    Returns:
        The algorithm, the model, clients and rows, rounds and convergence, and the verdict where it is known.
    """
    model = fit.algorithm.model
    likelihood = getattr(model, "likelihood", None)
    kind = type(model).__name__ + ("" if likelihood is None else f" with {type(likelihood).__name__}")
    state = "not started" if not fit.history else "converged" if fit.converged else "not converged"
    verdict = fit.__dict__.get("verdict")
    approximation = "not assessed yet; see fit.verdict" if verdict is None else verdict.verdict
    return "\n".join(
        [
            f"Fit of {kind} by {type(fit.algorithm).__name__}, {_count(len(model.parameter_names), 'parameter')}",
            f"  clients: {len(fit.client_names)}{_rows(fit)}",
            f"  rounds: {len(fit.history)}, {state}",
            f"  approximation: {approximation}",
            "  print(fit.summary()) shows the estimates",
        ]
    )


def _rows(fit: Fit) -> str:
    """The number of rows of all clients, where it is known."""
    if fit.clients is None:
        return ", whose data are not in this process"
    data = fit.population("count rows").data
    if data is None:
        return ", streamed"
    return f" with {_count(sum(len(data[name].weight) for name in fit.client_names), 'row')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
