"""Families of distributions, whose members multiply, divide and take powers: q * t, q / t, t ** rho."""

from cavity.core.lazy_loading import listing
from cavity.distributions.conjugate import Beta, Dirichlet, Gamma
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.isotropic import IsotropicGaussian
from cavity.distributions.point import PointMass
from cavity.distributions.product import BlockProduct

__all__ = [
    "Beta",
    "BlockProduct",
    "DiagonalGaussian",
    "Dirichlet",
    "FullGaussian",
    "Gamma",
    "IsotropicGaussian",
    "PointMass",
]

__dir__ = listing(__all__)
