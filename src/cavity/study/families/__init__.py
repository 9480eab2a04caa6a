"""Outcome families: one file each, a contract (`family`), and a registry by name."""

from __future__ import annotations

from cavity.study.families.bernoulli import Bernoulli
from cavity.study.families.binomial import Binomial
from cavity.study.families.categorical import Categorical
from cavity.study.families.cox import Cox
from cavity.study.families.failure_time import Exponential, LogNormal, Weibull
from cavity.study.families.family import Curvature, Family
from cavity.study.families.gamma import Gamma
from cavity.study.families.gaussian import Gaussian
from cavity.study.families.negative_binomial import NegativeBinomial
from cavity.study.families.ordinal import Ordinal
from cavity.study.families.piecewise_exponential import PiecewiseExponential
from cavity.study.families.poisson import Poisson
from cavity.study.families.registry import families, family_class, make_family, read_family, register_family
from cavity.study.families.regression_family import Predictor, RegressionFamily
from cavity.study.families.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Binomial",
    "Categorical",
    "Cox",
    "Curvature",
    "Exponential",
    "Family",
    "Gamma",
    "Gaussian",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "PiecewiseExponential",
    "Poisson",
    "Predictor",
    "RegressionFamily",
    "StudentT",
    "Weibull",
    "families",
    "family_class",
    "make_family",
    "read_family",
    "register_family",
]
