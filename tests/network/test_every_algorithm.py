"""Every algorithm over the real encoding: what its clients send is what it declares, and faults change nothing."""

import jax
import numpy as np
import numpyro
import optax
import pytest
from numpyro import distributions as dist

import cavity
from cavity import ledger
from cavity.algorithms import InducingAverage
from cavity.core.client_data import prepare_clients
from cavity.core.messages import Reply
from cavity.distributions import DiagonalGaussian
from cavity.errors import ProtocolError
from cavity.losses import Beta
from cavity.simulation.local import LocalEngine
from cavity.solvers import SGMCMC, Gradient, Point, ScaledIdentity, SGDIterates
from tests import scenarios
from tests.contracts.encoding import through_encoding
from tests.contracts.faults import check_survives_faults

pytestmark = pytest.mark.usefixtures("quick_to_compile")

DESCENT = SGMCMC(SGDIterates(0.01), ScaledIdentity(1.0), num_epochs=2, burn_in=1)
FLAT = cavity.models.linear_regression(1, noise_sd=0.7, covariance=DiagonalGaussian)
FULL = cavity.models.linear_regression(1, noise_sd=0.7)


def linear():
    x, y = scenarios.linear(24, 1)
    return scenarios.clients(x, y, scenarios.homogeneous(24, 3))


def levels(ward, outcome, num_wards):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("wards", num_wards):
        level = numpyro.sample("level", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(level[ward], 1), obs=outcome)


def wards():
    rng = np.random.default_rng(1)
    return {
        name: {"ward": np.repeat([f"{name}{i}" for i in range(2)], 4), "outcome": rng.normal(size=8)}
        for name in ("leeds", "york", "hull")
    }


def mixed():
    return cavity.models.numpyro_model(levels, wards()["leeds"], unit="ward", num_units="num_wards")


def process():
    return cavity.models.sparse_gp(1, num_inducing=3, seed=1)


# name -> (algorithm, clients, whether undisturbed rounds end at one posterior)
ALGORITHMS = {
    "pvi": lambda: (cavity.PVI(FULL), linear(), True),
    "fedgvi": lambda: (cavity.FedGVI(FULL, Beta(0.2), solver=Gradient(optax.adam, 0.02, num_steps=3)), linear(), False),
    "fedep": lambda: (cavity.FedEP(FLAT, solver=DESCENT, step_size=0.5), linear(), False),
    "fedep, adam": lambda: (cavity.FedEP(FLAT, solver=DESCENT, optimiser=optax.adam, step_size=0.1), linear(), False),
    "fedep, server's adam": lambda: (
        cavity.FedEP(FLAT, solver=DESCENT, server_optimiser=optax.adam, server_step_size=0.1),
        linear(),
        False,
    ),
    "fedsep": lambda: (cavity.FedSEP(FLAT, solver=DESCENT), linear(), False),
    "fedpa": lambda: (cavity.FedPA(FLAT, solver=DESCENT), linear(), False),
    "fedavg": lambda: (
        cavity.FedAvg(FLAT, solver=SGMCMC(SGDIterates(0.01), Point(), num_epochs=2, burn_in=1)),
        linear(),
        False,
    ),
    "sfvi": lambda: (cavity.SFVI(mixed(), num_steps=50, initialise=False), wards(), False),
    "sfvi-avg": lambda: (
        cavity.SFVIAvg(mixed(), total=6, num_rounds=5, local_steps=3, initialise=False),
        wards(),
        False,
    ),
    "hierarchical pvi": lambda: (cavity.HierarchicalPVI(process(), solver=_few_steps()), linear(), False),
    "inducing average": lambda: (InducingAverage(process(), 24, solver=_few_steps(point=True)), linear(), False),
}


THOROUGH = ("fedep, adam", "fedep, server's adam", "sfvi", "sfvi-avg", "hierarchical pvi", "inducing average")
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in THOROUGH else ()) for name in ALGORITHMS]


def _few_steps(**options):
    from cavity.solvers.shared_descent import SharedDescent

    return SharedDescent(optax.adam, num_steps=3, **options)


def one_exchange(algorithm, clients):
    """The message to the first client as it receives it, its reply as the server receives it, and the carrier."""
    name = next(iter(clients))
    data = prepare_clients(algorithm.model, clients)
    server = ledger.open_ledger(algorithm, list(clients), 3)
    server, messages = ledger.dispatch(algorithm, server, [name])
    carry = through_encoding(algorithm)
    engine = LocalEngine(algorithm, data, seed=3)
    engine.submit(carry(messages[0]))
    return server, carry, engine.collect(1)[0]


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_what_the_algorithm_declares(name):
    algorithm, clients, _ = ALGORITHMS[name]()
    server, carry, reply = one_exchange(algorithm, clients)
    received = carry(reply)
    for sent, got in zip(jax.tree.leaves(reply.update), jax.tree.leaves(received.update), strict=True):
        np.testing.assert_array_equal(sent, got)
    after, outcome = ledger.receive(algorithm, server, [received])
    assert list(outcome.accepted) == [reply.client]
    assert after.version == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_update_of_another_shape_is_refused(name):
    algorithm, clients, _ = ALGORITHMS[name]()
    _, carry, reply = one_exchange(algorithm, clients)
    delta = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 2), reply.update.delta)
    with pytest.raises(ProtocolError, match="its update has"):
        carry(Reply(reply.client, reply.version, reply.sequence, type(reply.update)(delta, reply.update.report)))


@pytest.mark.parametrize("name", NAMES)
def test_faults_change_nothing(name):
    """No update counts twice or not at all, through the real encoding."""
    algorithm, clients, comes_to_rest = ALGORITHMS[name]()
    seen = check_survives_faults(algorithm, clients, 3, first_seed=70_000, comes_to_rest=comes_to_rest, num_steps=60)
    assert seen["reply accepted"] > 10
