"""What every model promises of a client's weighted dataset: it counts rows by their weights, and nothing else.

Padding as the engine makes it, rows of weight 0 anywhere and the order of rows change nothing; a row of weight 2 is the
row twice. All of it holds for the value and for its gradient, in which padding often shows first (0 times NaN).
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cavity.core import ConjugateModel, Data, Model, RowModel, pad

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
    """The promises of `Model`, and of `RowModel` and `ConjugateModel` where it is one."""
    check_counts_rows_by_weight(model.log_prob, theta, data)
    kept, absent = pairs(data)["weight 0 is absent"]
    rtol = 1e-9 if theta.dtype == jnp.float64 else 2e-4
    if isinstance(model, RowModel):
        here, there = (_call(model.row_log_prob, theta, data.batch) for data in (kept, absent))
        assert here.shape == (len(KEPT),)
        np.testing.assert_allclose(there[KEPT], here, rtol=rtol)  # a row alone decides
        np.testing.assert_allclose(jnp.sum(here), _call(model.log_prob, theta, kept), rtol=rtol)
    if isinstance(model, ConjugateModel) and model.is_conjugate:
        for one, other in pairs(data).values():
            factors = (jax.tree.leaves(_call(model.likelihood_factor, data)) for data in (one, other))
            for a, b in zip(*factors, strict=True):
                np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * np.abs(a).max())


def check_server_rows(model: Model, theta, data: Data) -> None:
    """What the server owns counts by its weight too, in the same stack as clients' rows."""
    for row in model.server_entries().values():
        num_units = 0 if data.units is None else len(data.units.weight)
        padded, thrice = pad(row, NUM_ROWS, num_units), replace(row, weight=3.0 * row.weight)
        value, again, more = (float(_call(model.log_prob, theta, rows)) for rows in (row, padded, thrice))
        np.testing.assert_allclose([again, more], [value, 3.0 * value], rtol=1e-12)
