"""Outcome families: one file each, a contract (`family`), and a registry by name."""

from __future__ import annotations

from cavity.study.families.bernoulli import Bernoulli
from cavity.study.families.categorical import Categorical
from cavity.study.families.cox import Cox
from cavity.study.families.failure_time import Exponential, LogNormal, Weibull
from cavity.study.families.family import Curvature, Family
from cavity.study.families.gaussian import Gaussian
from cavity.study.families.piecewise_exponential import PiecewiseExponential
from cavity.study.families.poisson import Poisson
from cavity.study.families.registry import families, family_class, make_family, read_family, register_family
from cavity.study.families.regression_family import Predictor, RegressionFamily

__all__ = [
    "Bernoulli",
    "Categorical",
    "Cox",
    "Curvature",
    "Exponential",
    "Family",
    "Gaussian",
    "LogNormal",
    "PiecewiseExponential",
    "Poisson",
    "Predictor",
    "RegressionFamily",
    "Weibull",
    "families",
    "family_class",
    "make_family",
    "read_family",
    "register_family",
]
