"""Studies with group terms over a network: what a client sends has no names, numbers or effects of its groups."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from cavity.io import serialization
from cavity.models.glm.columns import units_of
from cavity.models.latent_prior import SERVER
from cavity.models.mixed.conditional import conditional_modes
from cavity.network.client import preview, site_of
from cavity.network.limits import bounds, problem_with_scaling
from cavity.network.protocol import RunConfig
from cavity.network.run_directory import WITHDRAW, Requests
from cavity.network.worker import first_reply
from cavity.study import as_table, parse_study
from cavity.study.building import scaling_of
from tests.marks import thorough
from tests.network.test_protocol import Faults, SimulatedStudy, check_invariant
from tests.studies import gap
from tests.study.test_mixed_models import STUDY, hospital, hospitals

BERNOULLI = STUDY.replace('"gaussian"', '"bernoulli"').replace("stay", "died").replace('died = { type = "number" }', "")
BERNOULLI = BERNOULLI.replace("[columns]", '[columns]\ndied = { type = "boolean" }').replace(
    "(age | ward)", "(1 | ward)"
)


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """The study, the site of Leeds, the scaling, and the reply to the first message."""
    study, table = parse_study(BERNOULLI), as_table(hospitals()["leeds"])
    scaling = scaling_of(study, list(hospitals().values()))
    assert problem_with_scaling(study, table, scaling) is None
    site = site_of(study, "leeds", table, tmp_path_factory.mktemp("site"), lambda line: None)
    return study, table, site, scaling, first_reply(site, RunConfig(scaling))


@thorough
def test_what_is_sent_has_no_names_numbers_or_effects_of_groups(sent):
    _, table, site, scaling, reply = sent
    sums = [site.sums(None), site.sums(replace(scaling, design=()))]
    messages = [serialization.to_bytes(each) for each in (reply, *sums)]
    data = site.client_config(RunConfig(scaling)).data
    labels = list(dict.fromkeys(table.columns["ward"]))
    assert len(labels) == len(data.units.weight) == 6
    secrets = [label.encode() for label in labels]
    secrets += [row.tobytes() for row in np.asarray(units_of(labels, 6).batch)]
    algorithm = site.client_config(RunConfig(scaling)).algorithm
    tilted = algorithm.prior * reply.update.delta
    modes, _, _ = conditional_modes(algorithm.model.latent, None, jax.numpy.asarray(tilted.mean), data)
    secrets += [np.float64(mode).tobytes() for mode in np.ravel(modes)]
    sent_numbers = np.ravel(np.asarray(reply.update.delta.precision_mean, float))
    assert all(number.tobytes() in messages[0] for number in sent_numbers)  # the bytes are not compressed
    for message in messages:
        assert not [secret for secret in secrets if secret in message]


@thorough
def test_the_update_is_a_gaussian_of_the_shared_parameters(sent):
    *_, reply = sent
    size = 4  # intercept, age, sex and the log of the sd
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(reply.update.delta)]
    assert sorted(shapes) == [(size,), (size, size)]
    assert np.isfinite(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(reply.update.delta)])).all()


@thorough
def test_a_preview_shows_what_is_sent(sent):
    study, table, site, _, _ = sent
    lines = "\n".join(preview(study, table, site))
    assert "leeds-0" not in lines
    assert "delta" in lines


@thorough
def test_the_mean_of_a_posterior_is_bounded_and_its_precision_is_not(sent):
    study, _, _, scaling, _ = sent
    limits = bounds(study, scaling)
    assert limits.prior_sds == 5.0
    assert limits.added is None
    assert "integrated out" in limits.notes[0]


THREE = BERNOULLI.replace('["leeds", "york"]', '["leeds", "york", "hull"]')
THREE += "[run]\ntolerance = 1e-12\n"


def three_hospitals():
    frames = hospitals() | {"hull": hospital("hull", 6, 3)}
    return {name: as_table({**frame, "died": frame["died"].tolist()}) for name, frame in frames.items()}


@thorough
def test_the_posterior_is_that_of_one_process_whatever_is_lost_or_killed(tmp_path):
    """Through the real encoding; clients are killed and messages lost, repeated, delayed and damaged."""
    faults = Faults(drop=0.1, repeat=0.1, delay=0.1, damage=0.05, client_crash=0.1)
    simulated = SimulatedStudy(tmp_path, THREE, faults, seed=3, own_tables=three_hospitals())
    fit = simulated.run()
    assert fit.converged
    check_invariant(tmp_path / "run", simulated.study)
    assert simulated.transport.seen["client_crash"] > 0
    assert gap(fit.posterior, simulated.whole().posterior) < 1e-6
    sent = (tmp_path / "leeds" / "sent.jsonl").read_text()
    assert "leeds-0" not in sent


@thorough
def test_a_client_withdraws(tmp_path):
    simulated = SimulatedStudy(tmp_path, THREE, own_tables=three_hospitals())

    def after_round(record, state):
        if record["round"] == 2:
            Requests(tmp_path / "run").put(WITHDRAW + "york")

    fit = simulated.run(after_round)
    assert fit.server.names == ("leeds", "hull", SERVER)
    assert gap(fit.posterior, simulated.alone(["york"], scaled_by=simulated.study.clients)) < 1e-6
