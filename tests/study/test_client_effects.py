"""Coefficients of each client's own: the exact posterior with one column per client, and what each client sees."""

import numpy as np
import pytest

import cavity
from cavity.errors import CavityError, StudyError
from cavity.study import as_table, parse_study
from cavity.study.run import run_study
from tests.marks import thorough

LEVELS = {"leeds": -1.0, "york": 0.5, "hull": 2.0}
TILTS = {"leeds": 0.2, "york": 0.8, "hull": -0.3}


def hospitals(size=60):
    rng = np.random.default_rng(0)
    clients = {}
    for name in LEVELS:
        age, sex = rng.normal(60, 10, size), rng.choice(["f", "m"], size)
        stay = LEVELS[name] + 0.05 * age + 0.3 * (sex == "m") + TILTS[name] * age / 10 + rng.normal(size=size)
        clients[name] = {"stay": stay, "died": stay > np.median(stay), "age": age, "sex": sex}
    return clients


def exact(clients, own, shared, prior_sds, noise_sd=1.0):
    """The posterior of linear regression with columns `own` for each client and columns `shared`."""
    rows, names = [], [*((name, what) for name in clients for what in own), *shared]
    for name, frame in clients.items():
        columns = {"1": np.ones(len(frame["age"])), "age": frame["age"], "m": (frame["sex"] == "m").astype(float)}
        values = {(name, what): columns[what] for what in own} | {what: columns[what] for what in shared}
        rows.append(np.column_stack([values.get(key, np.zeros(len(frame["age"]))) for key in names]))
    x, y = np.concatenate(rows), np.concatenate([frame["stay"] for frame in clients.values()])
    scales = [prior_sds[key[1] if isinstance(key, tuple) else key] for key in names]
    covariance = np.linalg.inv(x.T @ x / noise_sd**2 + np.diag(1 / np.square(scales)))
    return dict(zip(names, covariance @ x.T @ y / noise_sd**2, strict=True)), dict(
        zip(names, np.sqrt(np.diag(covariance)), strict=True)
    )


WIDE = {"prior_scale": 1e3, "intercept_scale": 1e4}


@thorough
def test_intercepts_of_the_clients_are_those_with_a_column_each():
    clients = hospitals()
    fit = cavity.regression(
        "stay ~ age + sex", clients, family="gaussian", noise_sd=1.0, client_effects="intercepts", **WIDE
    )
    mean, sd = exact(clients, ["1"], ["age", "m"], {"1": 1e6, "age": 1e6, "m": 1e6})
    summary = fit.summary()
    assert [estimate.name for estimate in summary] == ["age", "sex[T.m]"]
    for name, key in (("age", "age"), ("sex[T.m]", "m")):
        assert summary[name].mean == pytest.approx(mean[key], abs=0.05 * sd[key])
        assert summary[name].sd == pytest.approx(sd[key], rel=0.05)
    for name in clients:
        own = fit.local(name).summary()[
            "1|client[0]" if "1|client[0]" in str(fit.local(name).summary()) else "1|client"
        ]
        assert own.mean == pytest.approx(mean[name, "1"], abs=0.2 * sd[name, "1"])
    with pytest.raises(CavityError, match="predict for a client"):
        fit.predict({"age": [60.0], "sex": ["f"]})
    predicted = float(np.asarray(fit.local("york").predict({"age": [60.0], "sex": ["f"]}).mean)[0])
    assert predicted == pytest.approx(mean["york", "1"] + 60 * mean["age"], abs=0.1)


@thorough
def test_slopes_of_the_clients_are_those_with_a_column_each():
    clients = hospitals()
    formula = "stay ~ sex + stratified(1, age)"
    fit = cavity.regression(formula, clients, family="gaussian", noise_sd=1.0, **WIDE)
    mean, sd = exact(clients, ["1", "age"], ["m"], {"1": 1e6, "age": 1e6, "m": 1e6})
    estimate = fit.summary()["sex[T.m]"]
    assert estimate.mean == pytest.approx(mean["m"], abs=0.05 * sd["m"])
    assert estimate.sd == pytest.approx(sd["m"], rel=0.05)


STUDY = """
name = "stays"
id = "stays"
clients = ["leeds", "york", "hull"]
[model]
family = "bernoulli"
formula = "died ~ age + sex"
client_effects = "intercepts"
[columns]
died = { type = "boolean" }
age = { type = "number", range = [0, 120] }
sex = { type = "category", levels = ["f", "m"] }
"""


@thorough
def test_a_study_has_the_same_choice_as_python():
    frames = {name: {**frame, "died": frame["died"].tolist()} for name, frame in hospitals().items()}
    fit = run_study(parse_study(STUDY), {name: as_table(frame) for name, frame in frames.items()})
    same = cavity.regression("died ~ age + sex", frames, family="bernoulli", client_effects="intercepts")
    np.testing.assert_allclose(fit.posterior.mean, same.posterior.mean, atol=1e-6)
    # the same with a column per client, whose Gaussian approximation is of all coefficients
    columns = {name: {**frame, "site": np.full(60, name)} for name, frame in frames.items()}
    dummies = cavity.regression("died ~ 0 + site + age + sex", columns, family="bernoulli", intercept_scale=10.0)
    theirs = dummies.summary()["age"]
    assert fit.summary()["age"].mean == pytest.approx(theirs.mean, abs=0.15 * theirs.sd)
    assert fit.summary()["age"].sd == pytest.approx(theirs.sd, rel=0.1)


def test_a_study_writes_the_choice_as_a_term():
    assert parse_study(STUDY).model.formula == "died ~ age + sex + stratified(1)"
    random = parse_study(STUDY.replace("intercepts", "random"))
    assert random.model.formula == "died ~ age + sex + (1 | client)"
    assert parse_study(STUDY.replace('client_effects = "intercepts"\n', "")).model.formula == "died ~ age + sex"
    with pytest.raises(StudyError) as refused:
        parse_study(STUDY.replace("intercepts", "fixed"))
    assert "client_effects" in str(refused.value)
    with pytest.raises(StudyError, match="unknown client_effects 'fixed'; choose one of: none, intercepts, random"):
        cavity.regression("died ~ age", hospitals(), client_effects="fixed")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("died ~ age + stratified()", "this group term has no effects"),
        ("died ~ age - stratified(1)", "effects of groups cannot be removed"),
        ("died ~ age + stratified(1) + (1 | client)", "two effects are called '1|client'"),
        ("died ~ age + stratified(x = age)", "takes columns, expressions, and 1"),
        ("died ~ age + stratified(died)", "the outcome 'died' is also on the right"),
    ],
)
def test_terms_that_cannot_be(formula, message):
    with pytest.raises(StudyError) as refused:
        cavity.regression(formula, hospitals())
    assert message in str(refused.value)
