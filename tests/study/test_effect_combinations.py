"""Effects of clients beside effects of groups within clients."""

import numpy as np
import pytest

import cavity
from cavity.errors import StudyError
from cavity.study.client_effects import with_client_effects
from tests.marks import thorough


def hospitals():
    """Six wards at each of two clients, whose intercepts differ by 1."""
    rng, clients = np.random.default_rng(0), {}
    for i, name in enumerate(("leeds", "york")):
        ward, effects = np.repeat(np.arange(6), 8), 0.5 * rng.normal(size=6)
        age = rng.normal(size=48).round(2)
        died = rng.uniform(size=48) < 1 / (1 + np.exp(-(i + effects[ward] + 0.5 * age)))
        clients[name] = {"age": age, "ward": [f"{name}-{w}" for w in ward], "died": died.astype(int)}
    return clients


def test_effects_of_clients_come_before_those_of_groups_within_them():
    assert with_client_effects("died ~ age + (1 | ward)", "random") == "died ~ age + (1 | client) + (1 | ward)"
    assert with_client_effects("died ~ (age | ward) + sex", "intercepts") == "died ~ stratified(1) + (age | ward) + sex"
    assert with_client_effects("died ~ age", "random") == "died ~ age + (1 | client)"
    assert with_client_effects("died ~ stratified(age)", "intercepts") == "died ~ stratified(age) + stratified(1)"
    assert with_client_effects("died ~ age + (1 | ward)", "none") == "died ~ age + (1 | ward)"


def test_the_other_order_is_refused_with_the_remedy():
    with pytest.raises(StudyError, match=r"the client is the largest group: write `\(1 \| client\)` before"):
        cavity.regression("died ~ age + (1 | ward) + (1 | client)", hospitals())


@thorough
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("intercepts", ("age", "1|ward_sigma")),
        ("random", ("intercept", "age", "1|client_sigma", "1|ward_sigma")),
    ],
)
def test_clients_and_wards(choice, names):
    fit = cavity.regression("died ~ age + (1 | ward)", hospitals(), client_effects=choice, tolerance=1e-3)
    assert fit.coefficients.names == names
    assert fit.converged
