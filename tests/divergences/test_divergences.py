"""KL by the contract of divergences, in every family."""

import numpy as np
import pytest

from cavity.distributions import DiagonalGaussian, FullGaussian, Gamma
from cavity.divergences import KL
from tests.contracts import divergence as contract
from tests.distributions.test_distributions import random_member

FAMILIES = [FullGaussian, DiagonalGaussian, Gamma]
family_of = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


@family_of
def test_contract(family):
    p, *members = (random_member(family, seed) for seed in range(4))
    contract.check_zero_at_equality(KL(), p)
    for q in members:
        contract.check_positive_elsewhere(KL(), q, p)
    contract.check_objective(KL(), members, p)


@family_of
def test_objective_of_an_improper_cavity(family):
    p, *members = (random_member(family, seed) for seed in range(3))
    contract.check_objective_of_improper(KL(), members, p / (p * p))


def test_kl_is_from_q_to_p():
    """KL(N(0, 1) : N(0, 4)) = log 2 - 3/8; the other way round it is 3/2 - log 2."""
    narrow = DiagonalGaussian.from_moments(np.zeros(1), np.ones(1))
    wide = DiagonalGaussian.from_moments(np.zeros(1), np.full(1, 4.0))
    np.testing.assert_allclose(KL()(narrow, wide), np.log(2) - 3 / 8, rtol=1e-12)
    np.testing.assert_allclose(KL()(wide, narrow), 3 / 2 - np.log(2), rtol=1e-12)
