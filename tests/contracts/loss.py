"""What every loss promises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


@eqx.filter_jit
def pulls(losses, likelihood, f, y):
    """Value [m, n] and slope in f [m, n, k] of m losses, of one row at a time."""

    def values(f, y):
        return jnp.stack([loss.of_predictor(likelihood, f, y) for loss in losses])

    return jax.vmap(values, out_axes=1)(f, y), jax.vmap(jax.jacrev(values), out_axes=1)(f, y)


def check_faces_agree(losses, model, theta, batch):
    """Of theta and of predictors, however they are arranged, it is one number per row, not summed nor averaged."""
    for values, by_predictor, last, nodes in _faces(losses, model, theta, batch):
        assert values.shape == by_predictor[0].shape
        assert values.ndim == 1
        np.testing.assert_allclose(values, by_predictor[0], rtol=1e-12)
        np.testing.assert_allclose(values[-2:], last, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(nodes, np.stack(by_predictor, axis=1), rtol=1e-12, atol=1e-14)


@eqx.filter_jit
def _faces(losses, model, theta, batch):
    f, y = model.predictor(theta, batch)
    last = jax.tree.map(lambda leaf: leaf[-2:], batch)
    for_each = []
    for loss in losses:
        by_predictor = [loss.of_predictor(model.likelihood, g, y) for g in (f, f + 0.3)]
        # as quadrature calls it: nodes [n, s, k] against outcomes [n, 1] (or [n, 1, d])
        nodes = loss.of_predictor(model.likelihood, jnp.stack([f, f + 0.3], axis=1), y[:, None])
        for_each.append((loss(model, theta, batch), by_predictor, loss(model, theta, last), nodes))
    return for_each


def check_limit(values, reference, epsilon):
    """`values(epsilon)`, losses or derivatives, tend to the reference; what is left is a series in epsilon * scale."""
    once, twice = np.asarray(values(epsilon)), np.asarray(values(2 * epsilon))
    reference = np.broadcast_to(reference, once.shape)
    scale = 1 + np.max(np.abs(reference))
    np.testing.assert_allclose(once, reference, rtol=0, atol=10 * epsilon * scale**2)
    np.testing.assert_allclose(2 * once - twice, reference, rtol=0, atol=1e-9 * scale + 10 * epsilon**2 * scale**3)


def check_bounded(values, slopes, bound, plain, plain_slopes):
    """Along rows ever less likely the loss tends to its bound, and no longer pulls according to the outcome.

    The last of them is so unlikely that the negative log likelihood (`plain`) exceeds every bound, and its gradient
    does not vanish.
    """
    assert (values <= bound * (1 + 1e-12)).all()
    np.testing.assert_allclose(values[-2:], bound, rtol=1e-9)
    np.testing.assert_allclose(slopes[-1], slopes[-2], atol=1e-9)
    assert plain[-1] > 100 * (1 + bound)
    assert (np.diff(plain) > 0).all()
    assert np.max(np.abs(plain_slopes[-1])) > 0.9


@eqx.filter_jit
def _expected(rule, losses, likelihood, moments, y):
    """Each loss summed over rows, and its slopes in the mean and in the covariance."""

    def totals(moments):
        return jnp.stack([jnp.sum(rule(loss, likelihood, *moments, y)) for loss in losses])

    return totals(moments), jax.jacrev(totals)(moments)


def _closed_form(loss, likelihood, mean, covariance, y):
    return loss.expected(likelihood, mean, covariance, y)


def check_expected(losses, likelihood, mean, covariance, y, by_quadrature, rtol):
    """The closed form under f ~ N(mean, covariance) and its derivatives are those of a sum over nodes."""
    values, slopes = _expected(_closed_form, losses, likelihood, (mean, covariance), y)
    expected, expected_slopes = _expected(by_quadrature, losses, likelihood, (mean, covariance), y)
    np.testing.assert_allclose(values, expected, rtol=rtol)
    for a, b in zip(slopes, expected_slopes, strict=True):
        if a.ndim == 4:  # a symmetric matrix has one derivative per pair of entries
            a, b = (side + np.swapaxes(side, 2, 3) for side in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (1 + np.max(np.abs(b))))
    return values
