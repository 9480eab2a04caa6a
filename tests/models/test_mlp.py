"""The perceptron: its layers, its predictions, what it refuses, and that it stays in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cavity import PVI, training
from cavity.aggregation import Fixed
from cavity.core.client_data import prepare_clients
from cavity.distributions import DiagonalGaussian
from cavity.errors import CavityError, DataError
from cavity.likelihoods import CategoricalSoftmax, GaussianNoise
from cavity.models import MLP, mlp_classifier, mlp_regression
from cavity.models.neural.layers import layer_names, num_weights, unpack_layers
from cavity.schedules import Synchronous
from cavity.simulation import drive
from cavity.simulation.local import LocalEngine
from cavity.solvers import Gradient
from cavity.solvers.plateau import Plateau
from cavity.solvers.start import Tight
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

SIZES = (3, 4, 2)


def standard(sizes, dtype=jnp.float32):
    return DiagonalGaussian(jnp.zeros(num_weights(sizes), dtype), jnp.ones(num_weights(sizes), dtype))


def run(algorithm, clients, rounds, **options):
    data = prepare_clients(algorithm.model, clients)
    server = training.open_federation(algorithm, Synchronous(), list(data), 0)
    stopping = training.Stopping(rounds, tolerance=0.0)
    engine = LocalEngine(algorithm, data)
    return training.run(algorithm, engine, Synchronous(), server, [], stopping, **options)


def test_forward_against_loops():
    """Weights [in, out] and then biases, layer by layer; no activation after the last."""
    model = MLP(standard(SIZES), CategoricalSoftmax(2), SIZES, activation=jnp.tanh)
    theta = np.random.default_rng(0).normal(size=num_weights(SIZES)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    w1, b1, w2, b2 = theta[:12].reshape(3, 4), theta[12:16], theta[16:24].reshape(4, 2), theta[24:]
    expected = np.zeros((5, 2))
    for n in range(5):
        hidden = [np.tanh(sum(x[n, i] * w1[i, j] for i in range(3)) + b1[j]) for j in range(4)]
        expected[n] = [sum(hidden[j] * w2[j, k] for j in range(4)) + b2[k] for k in range(2)]
    np.testing.assert_allclose(model.forward(jnp.asarray(theta), jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    y = np.array([0, 1, 1, 0, 1])
    log_softmax = expected - np.log(np.exp(expected).sum(1, keepdims=True))
    np.testing.assert_allclose(
        model.row_log_prob(jnp.asarray(theta), (jnp.asarray(x), y)), log_softmax[np.arange(5), y], rtol=1e-4
    )


def test_the_default_activation_cuts_off_below_zero():
    model = mlp_classifier(1, [1], 2)
    theta = jnp.array([1.0, 0.0, 1.0, -1.0, 0.5, 0.5])
    x = jnp.array([[-2.0], [3.0]])
    np.testing.assert_allclose(model.forward(theta, x), [[0.5, 0.5], [3.5, -2.5]])


def test_every_weight_has_its_name_and_place():
    """The entry that a name speaks of is the one that moves that unit."""
    names = layer_names(SIZES)
    assert len(names) == len(set(names)) == num_weights(SIZES) == 26
    assert names == mlp_classifier(3, [4], 2).parameter_names
    for index, name in enumerate(names):
        layers = unpack_layers(jnp.zeros(26).at[index].set(1.0), SIZES)
        layer, entry = int(name.split(":")[0].split()[1]), name.split(": ")[1]
        weights, biases = layers[layer - 1]
        if entry[0] == "w":
            i, j = map(int, entry[2:-1].split(","))
            assert weights[i, j] == 1.0
        else:
            assert biases[int(entry[2:-1])] == 1.0
        assert sum(float(w.sum() + b.sum()) for w, b in layers) == 1.0


def test_the_prior_has_the_scale_that_was_asked_for():
    model = mlp_classifier(3, [4], 2, prior_scale=0.5)
    np.testing.assert_allclose(model.prior.variance, np.full(26, 0.25), rtol=1e-6)
    np.testing.assert_array_equal(model.prior.mean, np.zeros(26))


@thorough
def test_predicted_probabilities():
    """They sum to one, and are the average over the weights and not the net of the average weights."""
    model = mlp_classifier(3, [4], 3)
    d = model.prior.dimension
    mean = np.random.default_rng(2).normal(size=d)
    posterior = DiagonalGaussian.from_moments(mean, np.full(d, 0.5))
    x = np.random.default_rng(3).normal(size=(6, 3))
    prediction = model.predict(posterior, x, key=jax.random.key(0), num_draws=4000)
    assert prediction.mean.shape == (6, 3)
    np.testing.assert_allclose(np.sum(prediction.mean, axis=1), np.ones(6), rtol=1e-5)
    assert (np.asarray(prediction.lower) <= prediction.upper).all()
    draws = posterior.sample(jax.random.key(1), (4000,)).astype(jnp.float32)
    f = jax.vmap(model.forward, in_axes=(0, None))(draws, jnp.asarray(x, jnp.float32))
    outcomes = np.asarray(jax.nn.softmax(f))
    # two averages over 4000 draws of something with this sd
    np.testing.assert_array_less(
        np.abs(prediction.mean - outcomes.mean(0)), 4 * np.sqrt(2 / 4000) * np.asarray(prediction.sd)
    )
    np.testing.assert_allclose(prediction.sd, outcomes.std(0), rtol=0.2)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.zeros((4, 3)), "pair"),
        ((np.zeros((4, 2)), np.zeros(4)), "takes 3 features"),
        ((np.zeros(4), np.zeros(4)), "takes 3 features"),
        ((np.full((4, 3), np.nan), np.zeros(4)), "missing or infinite"),
        ((np.full((4, 3), "a"), np.zeros(4)), "text"),
        ((np.zeros((4, 3)), np.zeros(5)), "4 rows and y has 5"),
        ((np.zeros((4, 3)), np.full(4, 2)), "code the 2 classes as 0 to 1"),
        ((np.zeros((4, 3)), np.full(4, np.inf)), "outcome y has 4 missing or infinite"),
    ],
)
def test_data_that_cannot_be_used(batch, message):
    with pytest.raises(DataError, match=message):
        mlp_classifier(3, [4], 2).prepare(batch)


def test_parts_that_do_not_fit():
    with pytest.raises(CavityError, match="have 26 weights"):
        MLP(standard((3, 2)), CategoricalSoftmax(2), SIZES)
    with pytest.raises(CavityError, match="last layer has 2 units"):
        MLP(standard(SIZES), GaussianNoise(1.0), SIZES)
    model = mlp_classifier(3, [4], 2)
    with pytest.raises(DataError, match="takes 3 features"):
        model.predict(model.prior, np.zeros((4, 2)), key=jax.random.key(0), num_draws=1)


@thorough
def test_without_hidden_layers_it_is_a_regression_even_with_more_features_than_rows():
    """Mean field has the mean of the exact posterior and the diagonal of its precision."""
    rng = np.random.default_rng(4)
    x, noise_sd = rng.normal(size=(10, 30)), 0.5
    y = x[:, 0] - x[:, 1] + noise_sd * rng.normal(size=10)
    model = mlp_regression(30, [], noise_sd=noise_sd)

    def annealed(step_size):
        return optax.adam(optax.cosine_decay_schedule(step_size, 3000))

    algorithm = PVI(model, solver=Gradient(annealed, 0.02, num_steps=3000, batch_size=None), damping=Fixed(1.0))
    server, _, _ = run(algorithm, {"one": (x, y)}, rounds=1)
    a = np.column_stack([x, np.ones(10)])
    precision = np.eye(31) + a.T @ a / noise_sd**2
    mean, sd = np.linalg.solve(precision, a.T @ y / noise_sd**2), np.diag(precision) ** -0.5
    np.testing.assert_allclose(np.sqrt(server.posterior.variance), sd, rtol=0.05)
    # in units of the posterior's own uncertainty
    assert np.max(np.abs(np.asarray(server.posterior.mean) - mean) / sd) < 0.2
    prediction = model.predict(server.posterior, x, key=jax.random.key(0), num_draws=1000)
    np.testing.assert_allclose(prediction.mean, a @ mean, atol=4 * np.max(prediction.sd) / np.sqrt(1000) + 0.1)


def blobs(num_rows=90, seed=5):
    """Three classes around the corners of a triangle."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, num_rows)
    corners = np.array([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    return corners[y] + 0.7 * rng.normal(size=(num_rows, 2)), y


def seen(dtypes):
    """An activation that notes the precision of what comes by; it is called while tracing only."""

    def activation(x):
        dtypes.append(x.dtype)
        return jax.nn.relu(x)

    return activation


@thorough
@pytest.mark.parametrize(
    ("large", "rounds_per_block"), [(10**9, 1), (0, 1), (10**9, 3)], ids=["loop", "steps", "block"]
)
def test_a_small_federation_learns_in_single_precision(monkeypatch, large, rounds_per_block):
    """Though the program, and with it the ledger, are in double precision; by every way of running clients."""
    monkeypatch.setattr(drive, "LARGE", large)
    x, y = blobs()
    dtypes, sizes = [], (2, 8, 3)
    model = MLP(standard(sizes), CategoricalSoftmax(3), sizes, seen(dtypes))
    solver = Gradient(optax.adam, 0.03, num_steps=100, batch_size=16, plateau=Plateau(tolerance=1.0), start=Tight(0.1))
    algorithm = PVI(model, solver=solver, damping=Fixed(0.5))
    clients = {"a": (x[:45], y[:45]), "b": (x[45:], y[45:])}
    server, history, _ = run(algorithm, clients, rounds=3, rounds_per_block=rounds_per_block)
    assert len(history) == 3
    assert set(dtypes) == {jnp.dtype(jnp.float32)}
    assert {leaf.dtype for leaf in jax.tree.leaves(server.posterior)} == {np.dtype(np.float64)}

    test_x, test_y = blobs(seed=6)
    predictions = [
        model.predict(q, test_x, key=jax.random.key(0), num_draws=50) for q in (server.prior, server.posterior)
    ]
    before, after = (np.asarray(prediction.mean) for prediction in predictions)
    assert after.dtype == np.float32
    assert np.mean(np.argmax(after, axis=1) == test_y) > 0.85
    score = [-np.mean(np.log(p[np.arange(90), test_y])) for p in (before, after)]
    assert score[1] < 0.6 * score[0]
