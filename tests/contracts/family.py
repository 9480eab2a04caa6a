"""What every outcome family promises to a study."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cavity.core import Data
from cavity.errors import StudyError
from cavity.study.columns import Number, Text
from cavity.study.encoding import FormulaEncoding
from cavity.study.families import family_class, make_family
from cavity.study.guessing import RawColumn
from cavity.study.models import formula_model
from cavity.study.priors import PriorChoice
from cavity.study.scaling import ScaledColumn, Scaling


def default_prior(family, *, outcome_is_scaled):
    extra = tuple(family.extra_scales(outcome_is_scaled=outcome_is_scaled).items())
    return PriorChoice(family.slope_scale, family.intercept_scale, extra)


def check_names(family):
    """Its name and aliases find it, and settings that it does not have are refused."""
    for name in (family.name, *family.aliases):
        assert family_class(name) is type(family)
    assert make_family(family, {}) is family
    try:
        make_family(family.name, {"no_such_setting": 1.0})
    except StudyError as error:
        assert "no_such_setting" in str(error)
    else:
        raise AssertionError("an unknown setting is accepted")
    assert family.title
    assert hash(family) == hash(type(family)(**vars(family)))


def encoding_of(family, cells, *, scale_outcome=True):
    """The encoding of one numeric predictor and outcomes with these cells (one list per column)."""
    names = [f"y{i}" for i in range(len(cells))]
    outcome = [
        family.outcome_column(RawColumn(name, own), i) for i, (name, own) in enumerate(zip(names, cells, strict=True))
    ]
    left = names[0] if family.outcome_function is None else f"{family.outcome_function}({', '.join(names)})"
    scaled = family.scales_outcome and scale_outcome
    scaling = Scaling((ScaledColumn("x", 1.0, 2.0),), ScaledColumn("y0", 3.0, 0.5) if scaled else None)
    return FormulaEncoding(f"{left} ~ x", (*outcome, Number(name="x")), scaling)


def check_outcome(family, cells):
    """The columns that it chooses for these cells are an outcome that it takes; a text is not."""
    outcome = encoding_of(family, cells).outcome
    assert family.outcome_problem(outcome) is None
    for column, own in zip(outcome, cells, strict=True):
        parsed = column.parse(own)
        assert not parsed.bad
        assert not parsed.missing.any()
    assert family.outcome_problem(tuple(Text(name=column.name) for column in outcome))


def check_model(family, cells):
    """The model has a parameter per prior scale and a finite log likelihood of these outcomes at the prior mean."""
    for scale_outcome in (True, False):
        encoding = encoding_of(family, cells, scale_outcome=scale_outcome)
        is_scaled = encoding.scaling.outcome is not None
        prior = default_prior(family, outcome_is_scaled=is_scaled)
        assert all(scale > 0 for _, scale in prior.extra)
        model = formula_model(family, encoding, prior, None)
        names = model.parameter_names
        assert len(set(names)) == len(names) == model.prior.dimension
        assert len(names) >= (1 + family.has_intercept) * family.num_blocks(encoding.outcome)
        table = dict(zip(encoding.parsed.outcomes, cells, strict=True))
        batch = model.prepare(table | {"x": np.linspace(-1.0, 1.0, len(cells[0]))})
        if model.row_model is None:
            assert np.isfinite(eqx.filter_jit(model.log_prob)(model.prior.mean, _data(batch)))
            continue
        log_prob = eqx.filter_jit(model.row_log_prob)(model.prior.mean, jax.tree.map(jnp.asarray, batch))
        assert log_prob.shape == (len(cells[0]),)
        assert np.isfinite(log_prob).all()


def _data(batch):
    num_rows = len(jax.tree.leaves(batch)[0])
    return Data(jax.tree.map(jnp.asarray, batch), jnp.ones(num_rows), jnp.asarray(num_rows))


def check_curvature(family, cells):
    """A log-concave family has no row whose log likelihood curves upwards, and a bound on the curvature is positive."""
    encoding = encoding_of(family, cells)
    bound = family.curvature(encoding.outcome, 1.0)
    assert bound.reason if bound.bound is None else bound.bound > 0
    model = formula_model(family, encoding, default_prior(family, outcome_is_scaled=True), None)
    if not family.is_log_concave:
        return
    table = dict(zip(encoding.parsed.outcomes, cells, strict=True))
    data = _data(model.prepare(table | {"x": np.linspace(-1.0, 1.0, len(cells[0]))}))
    hessian = jax.jit(jax.hessian(lambda theta: model.log_prob(theta, data)))
    for seed in range(3):
        theta = jnp.asarray(np.random.default_rng(seed).normal(size=model.prior.dimension))
        largest = np.linalg.eigvalsh(hessian(theta)).max()
        assert largest < 1e-9


def check_family(family, cells):
    """All of the above.

    Args:
        family: to be checked.
        cells: of outcomes that it takes, one list per column.
    """
    check_names(family)
    check_outcome(family, cells)
    check_model(family, cells)
    check_curvature(family, cells)
