"""A wrapper that clips and perturbs what any factor algorithm sends, as somebody outside the package writes it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity import ledger
from cavity.aggregation import Fixed
from cavity.core import Algorithm, ClientPart, Model, Release
from cavity.core.client_data import prepare_clients
from cavity.core.messages import ClientUpdate
from cavity.distributions.natural import product
from cavity.simulation.local import LocalEngine
from cavity.solvers import Conjugate
from tests import scenarios
from tests.contracts.faults import check_survives_faults, distance


class ClipAndPerturb(Release):
    """Clips the natural parameters of a delta to a ball, adds normal noise, and counts what was released."""

    bound: float
    noise: float

    def initial(self, data):
        return np.zeros((), int)

    def apply(self, key, update, spent, data):
        leaves, structure = jax.tree.flatten(update.delta)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))
        keys = jax.random.split(key, len(leaves))
        scale = jnp.minimum(1.0, self.bound / norm)
        sent = [
            scale * leaf + self.noise * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
        ]
        return ClientUpdate(jax.tree.unflatten(structure, sent), update.report), spent + 1


class PerturbedClient(ClientPart):
    inner: ClientPart
    how: Release
    solver: Conjugate

    @property
    def release(self):
        return self.how

    def initial_local(self, data):
        return self.inner.initial_local(data)

    def problem(self, inputs, local, data):
        return self.inner.problem(inputs, local, data)

    def update(self, inputs, local, problem, solution):
        return self.inner.update(inputs, local, problem, solution)


class Perturbed(Algorithm):
    """Any algorithm whose updates are clipped and perturbed before they leave the client."""

    inner: Algorithm
    model: Model
    how: Release

    @property
    def prior(self):
        return self.inner.prior

    @property
    def client(self):
        client = self.inner.client
        return PerturbedClient(solver=client.solver, inner=client, how=self.how)

    @property
    def server(self):
        return self.inner.server

    @property
    def declaration(self):
        return self.inner.declaration

    @property
    def convergence(self):
        return self.inner.convergence


def perturbed(bound=1e6, noise=0.0):
    model = cavity.models.linear_regression(1, noise_sd=0.7)
    inner = cavity.PVI(model, solver=Conjugate(), damping=Fixed(0.5))
    return Perturbed(model=model, inner=inner, how=ClipAndPerturb(bound, noise))


def clients():
    x, y = scenarios.linear(24, 1)
    return scenarios.clients(x, y, scenarios.homogeneous(24, 3))


def test_without_noise_it_is_the_inner_algorithm():
    algorithm = perturbed()
    found, inner = (cavity.run(each, clients(), rounds=6, tolerance=0.0) for each in (algorithm, algorithm.inner))
    assert distance(found.posterior, inner.posterior) < 1e-12


def test_updates_are_clipped_and_perturbed_and_the_posterior_is_the_product_of_its_entries():
    fit = cavity.run(perturbed(bound=3.0, noise=1e-3), clients(), rounds=6, tolerance=0.0)
    assert distance(fit.posterior, fit.server.prior * product(list(fit.server.entries.values()))) < 1e-12
    inner = cavity.run(perturbed().inner, clients(), rounds=6, tolerance=0.0)
    assert distance(fit.posterior, inner.posterior) > 1e-2


def test_noise_does_not_follow_from_the_seed():
    one, other = (cavity.run(perturbed(noise=1e-3), clients(), rounds=2, tolerance=0.0, seed=1) for _ in range(2))
    assert distance(one.posterior, other.posterior) > 1e-6
    plain = [cavity.run(perturbed().inner, clients(), rounds=2, tolerance=0.0, seed=1).posterior for _ in range(2)]
    assert distance(*plain) == 0.0


def test_the_same_secret_gives_the_same_reply_to_the_same_message():
    algorithm = perturbed(noise=1e-3)
    data = prepare_clients(algorithm.model, clients())
    server = ledger.open_ledger(algorithm, list(data), 0)
    _, messages = ledger.dispatch(algorithm, server, ["leeds" if "leeds" in data else next(iter(data))])

    def reply(secret):
        engine = LocalEngine(algorithm, data, secret=secret)
        engine.submit(messages[0])
        return engine.collect(1)[0].update.delta

    assert distance(reply(b"a" * 32), reply(b"a" * 32)) == 0.0
    assert distance(reply(b"a" * 32), reply(b"b" * 32)) > 1e-6


def test_what_is_spent_stays_spent_when_a_reply_is_refused():
    algorithm = perturbed()
    data = prepare_clients(algorithm.model, clients())
    engine = LocalEngine(algorithm, data)
    server = ledger.open_ledger(algorithm, list(data), 0)
    for asked in range(1, 4):
        server, messages = ledger.dispatch(algorithm, server, [server.names[0]])
        engine.submit(messages[0])
        engine.collect(1)
        server = ledger.abandon(server, server.names)  # the reply is never accepted
        assert engine.client_states()[server.names[0]].spent == asked
    engine.submit(messages[0])  # a repeated request gets the stored reply and is not charged again
    engine.collect(1)
    assert engine.client_states()[server.names[0]].spent == 3


@pytest.mark.parametrize("held_by_clients", [False, True], ids=["server-held", "client-held"])
def test_faults_change_nothing(held_by_clients):
    seen = check_survives_faults(
        perturbed(bound=50.0, noise=1e-4), clients(), 12, held_by_clients=held_by_clients, comes_to_rest=False
    )
    assert seen["reply accepted"] > 20


def test_it_resumes(tmp_path):
    algorithm = perturbed()
    whole = cavity.run(algorithm, clients(), rounds=4, tolerance=0.0)
    cavity.run(algorithm, clients(), rounds=2, tolerance=0.0, directory=tmp_path)
    resumed = cavity.resume(tmp_path, clients(), algorithm=algorithm, rounds=4, tolerance=0.0)
    assert distance(resumed.posterior, whole.posterior) == 0.0
    assert {int(state.spent) for state in resumed.client_states.values()} == {4}


def test_a_release_is_a_part_of_the_client():
    assert eqx.tree_equal(perturbed().client.release, ClipAndPerturb(1e6, 0.0))
