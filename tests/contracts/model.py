"""The contract of every model on a client's weighted dataset: it counts rows by their weights only.

Padding as the engine makes it, rows of weight 0 anywhere and the order of rows change nothing; a row of weight 2 is the
row twice. All of it holds for the value and for its gradient, in which padding often shows first (0 times NaN).
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cavity.core import (
    ClosedFormMean,
    CorrectedPrior,
    Data,
    ExpectedPower,
    LinearModel,
    Model,
    Noisy,
    OutcomeDraws,
    PowerIntegral,
    PredictiveModel,
    PredictorDraws,
    PredictorModel,
    ReportedModel,
    RowModel,
    pad,
)
from cavity.distributions import FullGaussian

NUM_ROWS = 12
KEPT = np.array([0, 2, 3, 5, 6, 8, 9, 11])  # the others are absent in turn
RNG = np.random.default_rng(0)
ORDER = RNG.permutation(NUM_ROWS)


def rows(data: Data, places, weight=None) -> Data:
    """The rows at these places, with these weights; the units stay."""
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[places], data.batch)
    weight = np.ones(len(places)) if weight is None else np.asarray(weight, float)
    return Data(batch, weight, np.asarray(len(places)), data.units)


def pairs(data: Data) -> dict[str, tuple[Data, Data]]:
    """Two ways to write the same dataset each, from one of `NUM_ROWS` rows; in two sizes, so that few programs run."""
    everywhere, kept = np.arange(NUM_ROWS), rows(data, KEPT)
    present = np.isin(everywhere, KEPT).astype(float)
    absent = rows(data, everywhere, present)
    counts = np.array([2, 2, 2, 2, 1, 1, 1, 1])
    weight = np.zeros(NUM_ROWS)
    weight[KEPT] = counts
    half = np.repeat(everywhere[:6], 2)
    num_units = 0 if data.units is None else len(data.units.weight) + 2
    return {
        "padded": (kept, pad(kept, NUM_ROWS, num_units)),
        "weight 0 is absent": (kept, absent),
        "permuted": (absent, rows(data, ORDER, present[ORDER])),
        "weight 2 is twice": (rows(data, np.repeat(KEPT, counts)), rows(data, everywhere, weight)),
        "two halves are one": (rows(data, half, np.full(NUM_ROWS, 0.5)), rows(data, everywhere, everywhere < 6)),
    }


@eqx.filter_jit
def _call(function, *arguments):
    return function(*arguments)


@eqx.filter_jit
def _value_and_slope(function, at, data: Data):
    return jax.value_and_grad(lambda at: function(at, data))(at)


def check_counts_rows_by_weight(function, at, data: Data) -> None:
    """`function(at, data)` is one number, the same for all ways to write one dataset; so is its gradient in `at`."""
    assert len(data.weight) == NUM_ROWS
    rtol = 1e-9 if at.dtype == jnp.float64 else 2e-4
    values = []
    for name, (one, other) in pairs(data).items():
        (value, slope), (again, slope_again) = (_value_and_slope(function, at, data) for data in (one, other))
        assert value.shape == ()
        assert np.isfinite(slope).all()
        np.testing.assert_allclose(again, value, rtol=rtol, err_msg=name)
        np.testing.assert_allclose(slope_again, slope, rtol=rtol, atol=rtol * np.abs(slope).max(), err_msg=name)
        values.append(float(value))
    assert len(set(np.round(values, 6))) > 2  # other rows have another likelihood


def check_model(model: Model, theta, data: Data) -> None:
    """The contract of `Model`, of `RowModel` where it is one, and of a conjugate likelihood where it has one."""
    check_counts_rows_by_weight(model.log_prob, theta, data)
    kept, absent = pairs(data)["weight 0 is absent"]
    rtol = 1e-9 if theta.dtype == jnp.float64 else 2e-4
    if isinstance(model, RowModel):
        here, there = (_call(model.row_log_prob, theta, data.batch) for data in (kept, absent))
        assert here.shape == (len(KEPT),)
        np.testing.assert_allclose(there[KEPT], here, rtol=rtol)  # a row alone decides
        np.testing.assert_allclose(jnp.sum(here), _call(model.log_prob, theta, kept), rtol=rtol)
    for part in (model.conjugate, model.gaussian_rows):
        if part is None:
            continue
        for one, other in pairs(data).values():
            factors = (jax.tree.leaves(_call(part.likelihood_factor, data)) for data in (one, other))
            for a, b in zip(*factors, strict=True):
                np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * np.abs(a).max())


MODEL_CAPABILITIES = {
    "row_model": RowModel,
    "predictor_model": PredictorModel,
    "linear_model": LinearModel,
    "predictor_draws": PredictorDraws,
    "corrected_prior": CorrectedPrior,
}
LIKELIHOOD_CAPABILITIES = {
    "outcome_draws": OutcomeDraws,
    "power_integral": PowerIntegral,
    "expected_power": ExpectedPower,
}


def check_answers(part, capabilities: dict[str, type]) -> None:
    """A part answers with itself where it has a capability, and with None where it has not."""
    for name, kind in capabilities.items():
        assert getattr(part, name) is (part if isinstance(part, kind) else None)


def check_capabilities(model: Model, theta, data: Data, x) -> set[str]:
    """Every capability that a model claims works. Returns the names of those that were checked.

    Args:
        model: the model.
        theta: inside the support.
        data: the rows, not padded.
        x: new rows in the form that `predict` takes.
    """
    checked = set()
    data = jax.tree.map(jnp.asarray, data)
    rtol = 1e-9 if theta.dtype == jnp.float64 else 2e-4
    check_answers(model, MODEL_CAPABILITIES)
    assert (model.log_outcome_scale is not None) == isinstance(model, ReportedModel)
    if isinstance(model, PredictorModel):
        check_answers(model.likelihood, LIKELIHOOD_CAPABILITIES)
        checked |= {"PredictorModel", *check_likelihood_capabilities(model, theta, data)}
        f, y = _call(model.predictor, theta, data.batch)
        assert f.shape == (len(data.weight), model.likelihood.num_predictors)
        expected = _call(model.row_log_prob, theta, data.batch)
        np.testing.assert_allclose(model.likelihood.log_prob(f, y), expected, rtol=rtol)
    if isinstance(model, LinearModel):
        checked.add("LinearModel")
        designs, _ = _call(model.designs, data.batch)
        edges = np.cumsum([0, *(design.shape[1] for design in designs)])
        assert edges[-1] == len(theta)
        linear = [design @ theta[a:b] for design, a, b in zip(designs, edges, edges[1:], strict=False)]
        np.testing.assert_allclose(jnp.stack(linear, -1), f, rtol=rtol, atol=rtol)
    if isinstance(model, PredictorDraws):
        checked.add("PredictorDraws")
        drawn, _ = _call(model.draw_predictor, jax.random.key(0), model.prior, data.batch)
        assert drawn.shape == f.shape
        assert jnp.isfinite(drawn).all()
    if isinstance(model, PredictiveModel):
        checked.add("PredictiveModel")
        prediction = model.predict(model.prior, x, key=jax.random.key(0), num_draws=4)
        for part in (prediction.mean, prediction.sd, prediction.lower, prediction.upper):
            assert len(part) == len(data.weight)
            assert np.isfinite(part).all()
    if isinstance(model, ReportedModel):
        checked.add("ReportedModel")
        mean, covariance = model.reported_moments(model.prior)
        sd = np.sqrt(np.diagonal(covariance))  # the unit, because a mean or a covariance may be 0
        np.testing.assert_allclose((np.asarray(model.reported(model.prior).mean) - mean) / sd, 0.0, atol=rtol)
        between = (np.asarray(model.reported(model.prior).covariance) - covariance) / sd / sd[:, None]
        np.testing.assert_allclose(between, 0.0, atol=rtol)
        assert len(mean) == len(model.parameter_names)
        assert np.isfinite(model.log_outcome_scale)
        assert all(isinstance(remark, str) for remark in model.remarks)
    if isinstance(model, CorrectedPrior):
        checked.add("CorrectedPrior")
        batch, is_server = model.seen(data.batch)
        assert not is_server
        np.testing.assert_allclose(model.rows.row_log_prob(theta, batch), model.row_log_prob(theta, data.batch))
        assert jnp.isfinite(model.expected_correction(model.prior.mean, model.prior.covariance))
    if model.conjugate is not None:
        checked.add("conjugate")
        factor, constant = _call(model.conjugate.likelihood_factor, data)
        assert type(factor) is type(model.prior)
        np.testing.assert_allclose(factor.log_factor(theta) + constant, model.log_prob(theta, data), rtol=rtol)
    if model.gaussian_rows is not None:
        checked.add("gaussian_rows")
        rows = model.gaussian_rows
        factor, constant = _call(rows.likelihood_factor, data)
        assert isinstance(factor, FullGaussian)
        np.testing.assert_allclose(factor.log_factor(theta) + constant, model.log_prob(theta, data), rtol=rtol)
        near, far = (_call(rows.standardised_residuals, at, data.batch) for at in (theta, theta + 0.5))
        difference = model.row_log_prob(theta, data.batch) - model.row_log_prob(theta + 0.5, data.batch)
        np.testing.assert_allclose(0.5 * jnp.sum(far**2 - near**2, axis=-1), difference, rtol=1e-6, atol=1e-9)
        # twice the residual, so four times the square
        shifted = _call(rows.shifted, theta, data.batch, jnp.ones(len(data.weight)))
        np.testing.assert_allclose(_call(rows.standardised_residuals, theta, shifted), 2.0 * near, rtol=rtol, atol=rtol)
    return checked


def check_likelihood_capabilities(model: PredictorModel, theta, data: Data) -> set[str]:
    """Every capability that the likelihood of a model claims works at the predictors of its rows."""
    likelihood = model.likelihood
    f, y = _call(model.predictor, theta, data.batch)
    spread = jnp.broadcast_to(0.1 * jnp.eye(f.shape[-1], dtype=f.dtype), (*f.shape, f.shape[-1]))
    calls = {
        ClosedFormMean: lambda: likelihood.expected_mean(f[:, 0], jnp.full_like(f[:, 0], 0.1)),
        Noisy: lambda: jnp.asarray(likelihood.noise_precision),
        OutcomeDraws: lambda: likelihood.log_prob(f, likelihood.draw(jax.random.key(0), f)),
        PowerIntegral: lambda: likelihood.log_power_integral(f, 1.5),
        ExpectedPower: lambda: (
            likelihood.log_expected_power(f, spread, y, 0.5) + likelihood.expected_log_prob(f, spread, y)
        ),
    }
    claimed = {kind: call for kind, call in calls.items() if isinstance(likelihood, kind)}
    for kind, call in claimed.items():
        assert jnp.isfinite(call()).all(), kind
    return {kind.__name__ for kind in claimed}


def check_server_rows(model: Model, theta, data: Data) -> None:
    """What the server owns counts by its weight too, in the same stack as clients' rows."""
    for row in model.server_entries().values():
        num_units = 0 if data.units is None else len(data.units.weight)
        padded, thrice = pad(row, NUM_ROWS, num_units), replace(row, weight=3.0 * row.weight)
        value, again, more = (float(_call(model.log_prob, theta, rows)) for rows in (row, padded, thrice))
        np.testing.assert_allclose([again, more], [value, 3.0 * value], rtol=1e-12)
