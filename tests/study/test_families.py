"""Each family keeps its promises, and the registry finds it by name."""

import pytest

from cavity.errors import StudyError
from cavity.study.columns import Boolean, Category, Integer, Number, Text
from cavity.study.families import Bernoulli, Categorical, Gaussian, Poisson, families, family_class, make_family
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
        (Text(name="y"), 40, Categorical),
        (Integer(name="y"), 9, Poisson),
        (Number(name="y"), 40, Gaussian),
    ],
)
def test_a_draft_recognises_one_family(column, num_levels, family):
    built_in = [cls for cls in families() if cls.__module__.startswith("cavity.")]
    assert [cls for cls in built_in if cls.recognises(column, num_levels)] == [family]


def test_default_priors_of_families():
    assert (Gaussian.slope_scale, Gaussian.intercept_scale) == (2.5, 2.5)
    assert {(cls.slope_scale, cls.intercept_scale) for cls in (Bernoulli, Categorical, Poisson)} == {(2.5, 10.0)}
    assert Gaussian().extra_scales(outcome_is_scaled=True) == {"log_noise_scale": 2.5}
    assert Gaussian().extra_scales(outcome_is_scaled=False) == {"log_noise_scale": 10.0}
    assert Gaussian(noise_sd=1.0).extra_scales(outcome_is_scaled=True) == {}


def test_families_by_name():
    aliases = {"linear": Gaussian, "logistic": Bernoulli, "softmax": Categorical, "poisson": Poisson}
    assert {name: family_class(name) for name in aliases} == aliases
    assert make_family("linear", {"noise_sd": 2.0}) == Gaussian(noise_sd=2.0)
    with pytest.raises(StudyError, match=r"unknown family 'cauchy'.*choose one of: gaussian or linear"):
        family_class("cauchy")
    with pytest.raises(StudyError, match="give noise_sd to Gaussian"):
        make_family(Gaussian(), {"noise_sd": 2.0})
    with pytest.raises(StudyError, match="noise_sd must be positive, not -1"):
        make_family("gaussian", {"noise_sd": -1.0})
