"""Mixed models on the marginal likelihood: the quick form of the experiment, and the density of its reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from cavity.likelihoods import BernoulliLogit
from cavity.models.mixed.grouped_regression import GroupedRegression, GroupEffects
from cavity_experiments.joint_nuts import joint_density
from cavity_experiments.marginal_models import marginal_models
from cavity_experiments.runner import Size, run
from tests.marks import needs_data, thorough


@needs_data
@pytest.mark.slow
def test_the_quick_form(tmp_path):
    result = run("mixed-models", marginal_models, directory=tmp_path, size=Size.QUICK)
    assert result.complete
    assert not result.failed
    assert any(check.holds for check in result.checks)


@thorough
def test_the_reference_has_the_latents_of_smaller_groups():
    """Its density, summed over the effect of a mother, is that of the model, which integrates her effect out."""
    effects = (GroupEffects(("1",), "community"), GroupEffects(("1",), "mother"))
    model = GroupedRegression(BernoulliLogit(), ("x",), effects, [10.0, 2.5], [], [2.5, 2.5])
    rows = {"x": np.array([[0.3], [-0.8]]), "y": np.array([1.0, 0.0]), "z": np.ones((2, 2))}
    data = model.prepare(rows | {"group": np.array(["a", "a"]), "inner": np.array(["b", "b"])})
    shared, outer = jnp.array([0.2, -0.5, np.log(0.8), np.log(1.5)]), jnp.array([[0.6]])
    grid = jnp.linspace(-9.0, 9.0, 361)

    def joint(u):
        return joint_density(
            model, {"york": data}, {"shared": shared, "york": (outer, jnp.stack([u, 0.0 * u])[:, None])}
        )

    found = logsumexp(np.asarray(jax.vmap(joint)(grid))) + np.log(grid[1] - grid[0])
    of_no_mother = norm.logpdf(0.0)  # the second row has a number of a mother, whose first row it is not
    expected = model.log_prior(None, shared) + model.log_joint(None, shared, outer, data, jax.random.key(0))[0]
    assert found - of_no_mother == pytest.approx(float(expected), abs=1e-6)
