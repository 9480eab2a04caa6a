"""The forms of the covariance of a Gaussian posterior, by the names that study files and `covariance=` use."""

from __future__ import annotations

from collections.abc import Mapping

from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.isotropic import IsotropicGaussian
from cavity.errors import CavityError

Form = str | type[Gaussian] | None  # a name, the class of Gaussians itself, or None for a choice by dimension
FORMS: Mapping[str, type[Gaussian]] = {
    "full": FullGaussian,
    "diagonal": DiagonalGaussian,
    "isotropic": IsotropicGaussian,
}
FULL_COVARIANCE_LIMIT = 1000  # parameters; above it, d^2 numbers per client cost more than they are worth


def gaussian_class(covariance: Form, dimension: int) -> type[Gaussian]:
    """The Gaussians with a form of covariance.

    Args:
        covariance: "full", "diagonal" or "isotropic", or a class of Gaussians. None is full covariance up to
            `FULL_COVARIANCE_LIMIT` parameters, otherwise diagonal.
        dimension: the number of parameters.

    Returns:
        The class.

    Raises:
        CavityError: it is something else.

    Example:
        >>> gaussian_class("diagonal", 3).__name__
        'DiagonalGaussian'
    """
    if covariance is None:
        return FullGaussian if dimension <= FULL_COVARIANCE_LIMIT else DiagonalGaussian
    if isinstance(covariance, type) and issubclass(covariance, Gaussian):
        return covariance
    if isinstance(covariance, str) and covariance in FORMS:
        return FORMS[covariance]
    raise CavityError(f"unknown covariance {covariance!r}; choose one of: {', '.join(FORMS)}")
