"""The parts of the survival experiment that need no data."""

import jax.numpy as jnp
import numpy as np
import pytest

from cavity.core import Data
from cavity.models import cox_regression
from cavity_experiments.families_survival import EFFECTS, pooled_strata, simulated


def test_strata_in_periods_of_their_own_have_the_likelihood_of_the_clients():
    clients, model = simulated(200, 0), cox_regression(len(EFFECTS))

    def log_prob(rows):
        size = len(rows[1])
        return float(model.log_prob(jnp.array(EFFECTS), Data(rows, np.ones(size), np.asarray(size))))

    (pooled,) = pooled_strata(clients).values()
    assert log_prob(pooled) == pytest.approx(sum(map(log_prob, clients.values())), rel=1e-12)
