"""Each family keeps its promises, and the registry finds it by name."""

import pytest

from cavity.errors import StudyError
from cavity.study.columns import Boolean, Category, Integer, Number, Text
from cavity.study.families import (
    Bernoulli,
    Binomial,
    Categorical,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    families,
    family_class,
    make_family,
)
from tests.contracts.family import check_family

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUMBERS, COUNTS = [[1.5, -2.0, 3.25, 0.0]], [[0, 3, 1, 12]]
CASES = [
    (Gaussian(), NUMBERS),
    (Gaussian(noise_sd=2.0), NUMBERS),
    (Bernoulli(), [[True, False, False, True]]),
    (Bernoulli(), [[0, 1, 1, 0]]),
    (Bernoulli(), [["alive", "dead", "alive", "dead"]]),
    (Categorical(), [["a", "b", "c", "a"]]),
    (Poisson(), COUNTS),
    (StudentT(), NUMBERS),
    (StudentT(df=7), NUMBERS),
    (StudentT(df="learned"), NUMBERS),
    (Bernoulli(link="probit"), [[0, 1, 1, 0]]),
    (Bernoulli(link="cloglog"), [[0, 1, 1, 0]]),
    (Binomial(), [[1, 0, 3, 2], [4, 2, 3, 5]]),
    (Binomial(link="probit"), [[1, 0, 3, 2], [4, 2, 3, 5]]),
    (Binomial(link="cloglog"), [[1, 0, 3, 2], [4, 2, 3, 5]]),
    (Ordinal(), [[3, 1, 10, 2]]),
    (Ordinal(link="probit"), [[3, 1, 10, 2]]),
    (NegativeBinomial(), COUNTS),
    (Gamma(), [[0.001, 12_000.0, 3.0, 0.2]]),
]


@pytest.mark.parametrize(("family", "cells"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_contract(family, cells):
    check_family(family, cells)


@pytest.mark.parametrize(
    ("column", "num_levels", "family"),
    [
        (Boolean(name="y"), 2, Bernoulli),
        (Category(name="y", levels=(), reference=""), 2, Bernoulli),
        (Category(name="y", levels=(), reference=""), 3, Categorical),
        (Number(name="y"), 40, Gaussian),
    ],
)
def test_a_draft_recognises_one_family(column, num_levels, family):
    built_in = [cls for cls in families() if cls.__module__.startswith("cavity.")]
    assert [cls for cls in built_in if cls.recognises(column, num_levels)] == [family]


@pytest.mark.parametrize("column", [Text(name="y"), Integer(name="y")])
def test_a_draft_does_not_guess_what_it_cannot_know(column):
    built_in = [cls for cls in families() if cls.__module__.startswith("cavity.")]
    assert not any(cls.recognises(column, 40) for cls in built_in)


def test_default_priors_of_families():
    assert (Gaussian.slope_scale, Gaussian.intercept_scale) == (2.5, 2.5)
    assert {(cls.slope_scale, cls.intercept_scale) for cls in (Bernoulli, Categorical, Poisson)} == {(2.5, 10.0)}
    assert Gaussian().extra_scales(outcome_is_scaled=True) == {"log_noise_scale": 2.5}
    assert Gaussian().extra_scales(outcome_is_scaled=False) == {"log_noise_scale": 10.0}
    assert Gaussian(noise_sd=1.0).extra_scales(outcome_is_scaled=True) == {}


def test_families_by_name():
    aliases = {"linear": Gaussian, "logistic": Bernoulli, "softmax": Categorical, "poisson": Poisson}
    aliases |= {"student-t": StudentT, "negative-binomial": NegativeBinomial, "ordinal": Ordinal, "gamma": Gamma}
    aliases |= {"student_t": StudentT, "negative_binomial": NegativeBinomial, "binomial": Binomial}
    assert {name: family_class(name) for name in aliases} == aliases
    assert make_family("linear", {"noise_sd": 2.0}) == Gaussian(noise_sd=2.0)
    with pytest.raises(StudyError, match=r"unknown family 'cauchy'.*choose one of: gaussian or linear"):
        family_class("cauchy")
    with pytest.raises(StudyError, match="give noise_sd to Gaussian"):
        make_family(Gaussian(), {"noise_sd": 2.0})
    with pytest.raises(StudyError, match="noise_sd must be positive, not -1"):
        make_family("gaussian", {"noise_sd": -1.0})


def test_settings_of_families():
    assert make_family("bernoulli", {"link": "probit"}) == Bernoulli(link="probit")
    assert make_family("student-t", {"df": "learned"}) == StudentT(df="learned")
    for name, settings, message in [
        ("bernoulli", {"link": "log"}, "unknown link 'log'; choose one of: logit, probit, cloglog"),
        ("ordinal", {"link": "cloglog"}, "unknown link 'cloglog'; choose one of: logit, probit"),
        ("student-t", {"df": 1.0}, "df is a number above 1"),
        ("student-t", {"df": "free"}, "df is a number above 1"),
        ("poisson", {"link": "probit"}, "has no setting 'link'; it is for bernoulli, binomial, ordinal"),
    ]:
        with pytest.raises(StudyError, match=message):
            make_family(name, settings)


def test_default_priors_of_auxiliary_parameters():
    assert NegativeBinomial().extra_scales(outcome_is_scaled=False) == {"log_shape_scale": 2.5}
    assert Gamma().extra_scales(outcome_is_scaled=False) == {"log_shape_scale": 2.5}
    assert Ordinal().extra_scales(outcome_is_scaled=False) == {"log_gap_scale": 2.0}
    assert StudentT(df="learned").extra_scales(outcome_is_scaled=True) == {"log_sigma_scale": 2.5, "log_df_scale": 0.8}


def test_what_an_exponential_of_a_coefficient_is():
    links = [Bernoulli(link=link).coefficient_ratio for link in ("logit", "probit", "cloglog")]
    assert links == ["odds ratio", None, "hazard ratio"]
    assert Bernoulli(link="probit").description == "probit regression"
    assert Ordinal().coefficient_ratio == "odds ratio of a higher level"
