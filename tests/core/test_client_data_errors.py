"""Bad input gives an error that names the client and the remedy, before any work starts; odd input is not bad."""

import logging
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import cavity
from cavity import ledger, training
from cavity.core import Engine
from cavity.core.client_data import Weighted, prepare_clients
from cavity.core.messages import MAX_REFUSALS
from cavity.distributions import DiagonalGaussian, FullGaussian, Gamma
from cavity.errors import CavityError, DataError, ProtocolError
from cavity.schedules import Asynchronous, Sequential, Synchronous
from cavity.simulation.local import LocalEngine
from tests.contracts.faults import distance, types_unchecked
from tests.marks import thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = (X[:, 0] + RNG.normal(size=12) > 0).astype(float)
MODELS = {
    "logistic": lambda: cavity.models.logistic_regression(["age", "dose"]),
    "linear": lambda: cavity.models.linear_regression(["age", "dose"], noise_sd=1.0),
}


@pytest.fixture
def no_work(monkeypatch):
    """Starting an engine fails: the check must come before."""

    def fail(*arguments, **options):
        raise AssertionError("work has started")

    monkeypatch.setattr(LocalEngine, "__init__", fail)


def changed(array, place, value):
    array = np.array(array, object if isinstance(value, str) else float)
    array[place] = value
    return array


BAD = {
    "NaN": ((changed(X, (3, 1), np.nan), Y), r"column 'dose' has 1 missing or infinite values \(rows 3\); drop"),
    "infinity": ((changed(X, (3, 0), np.inf), Y), r"column 'age' has 1 missing or infinite.*impute"),
    "None": (([[1.0, None], [2.0, 3.0]], [0, 1]), r"column 'dose' has 1 missing.*\(rows 0\)"),
    "many NaN": ((np.full((12, 2), np.nan), Y), r"column 'age' has 12 missing.*rows 0, 1, 2.*drop"),
    "text": ((changed(X, (0, 1), "high"), Y), r"column 'dose' holds text such as 'high'; code it as numbers"),
    "NaN in y": ((X, changed(Y, 2, np.nan)), r"the outcome y has 1 missing.*\(rows 2\)"),
    "text in y": ((X, changed(Y, 0, "yes")), r"the outcome y holds text such as 'yes'; code it"),
    "too few columns": ((X[:, :1], Y), r"x has 1 columns, but the model has 2 features \(age, dose\)"),
    "too many columns": ((np.hstack([X, X]), Y), r"x has 4 columns.*the intercept is added for you"),
    "too many axes": ((X[None], Y), r"x has the shape \(1, 12, 2\).*\(age, dose\)"),
    "a number": ((3.0, Y), r"x has the shape \(\).*\(age, dose\)"),
    "ragged": (([[1.0, 2.0], [3.0]], [0, 1]), r"x is not a table.*one row per"),
    "ragged y": ((X[:2], [[0], [0, 1]]), r"y.*one outcome per row"),
    "two outcomes": ((X, np.stack([Y, Y], 1)), r"y must have one outcome per row; it has the shape \(12, 2\)"),
    "rows differ": ((X, Y[:-1]), r"x has 12 rows and y has 11; they must be the same rows"),
    "no rows": ((X[:0], Y[:0]), r"it has no rows; leave this client out"),
    "no rows, as lists": (([], []), r"it has no rows; leave this client out"),
    "no y": ({"x": X}, r"a regression needs the entries 'x' and 'y'; \['y'\] is missing"),
    "no pair": (X, r"a regression needs a pair \(x, y\) or a dict"),
    "nothing": (None, r"a regression needs a pair \(x, y\) or a dict"),
    "weights too short": (Weighted((X, Y), np.ones(11)), r"12 rows but weights of shape \(11,\); give one weight"),
    "weights in a table": (Weighted((X, Y), np.ones((12, 1))), r"12 rows but weights of shape \(12, 1\)"),
    "negative weights": (Weighted((X, Y), -np.ones(12)), r"weights must be finite and not negative"),
    "missing weights": (Weighted((X, Y), changed(np.ones(12), 3, np.nan)), r"weights must be finite and not negative"),
    "text as weights": (Weighted((X, Y), ["heavy"] * 12), r"weights.*numbers"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=BAD.keys())
def test_bad_data_names_the_client_and_the_remedy(no_work, model, data, message):
    clients = {"leeds": (X, Y), "york": data, "hull": (X, Y)}
    with pytest.raises(DataError, match=f"client 'york': .*{message}"):
        cavity.run(cavity.PVI(MODELS[model]()), clients)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 1, r"the outcome takes the values \[1\.0, 2\.0\]; code it as 0 and 1"),
        (2 * Y - 1, r"the outcome takes the values \[-1\.0, 1\.0\]; code it as 0 and 1"),
        (0.5 * Y, r"the outcome takes the values \[0\.0, 0\.5\]; code it as 0 and 1"),
    ],
)
def test_wrong_coding_of_a_binary_outcome(no_work, y, message):
    with pytest.raises(DataError, match=f"client 'york': {message}"):
        cavity.run(cavity.PVI(MODELS["logistic"]()), {"leeds": (X, Y), "york": (X, y)})


@pytest.mark.parametrize(
    ("make", "y", "message"),
    [
        (lambda: cavity.models.poisson_regression(2), Y - 2, "count"),
        (lambda: cavity.models.poisson_regression(2), Y + 0.5, "count"),
        (lambda: cavity.models.softmax_regression(2, 3), 3 * Y, "0 to 2|0, 1, 2|class"),
    ],
)
def test_wrong_coding_of_other_outcomes(no_work, make, y, message):
    with pytest.raises(DataError, match=f"client 'york'.*({message})"):
        cavity.run(cavity.PVI(make()), {"york": (X, y)})


def test_clients_that_differ_in_their_columns(no_work):
    """Where the model cannot know the columns, the clients are compared with each other."""
    model = cavity.models.function_model(lambda p, batch: batch[0] @ p["a"], {"a": np.zeros(2)})
    clients = {"leeds": (X, Y), "york": (X[:, :1], Y)}
    with pytest.raises(DataError, match=r"client 'york': .*\(1,\) where client 'leeds' has \(2,\); agree on the same"):
        cavity.run(cavity.PVI(model), clients)
    with pytest.raises(DataError, match=r"'york': its data have a different structure from those of client 'leeds'"):
        cavity.run(cavity.PVI(model), {"leeds": (X, Y), "york": {"x": X, "y": Y}})


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({}, r"there are no clients; give a dict with at least one"),
        ([(X, Y)], r"clients must be a dict of name -> data, not a list"),
        ((X, Y), r"clients must be a dict of name -> data, not a tuple"),
        (None, r"clients must be a dict of name -> data, not None"),
        ({1: (X, Y)}, r"client names must be strings; 1 is an int"),
    ],
    ids=["none", "list", "tuple", "None", "number as a name"],
)
def test_no_clients_to_speak_of(no_work, clients, message):
    with types_unchecked(), pytest.raises(DataError, match=message):
        cavity.run(cavity.PVI(MODELS["linear"]()), clients)


def test_a_name_that_is_taken(no_work):
    with pytest.raises(ProtocolError, match=r"no client may be called '\*'; rename it"):
        cavity.run(cavity.PVI(MODELS["linear"]()), {"*": (X, Y)})


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda: FullGaussian(np.zeros(2), np.eye(2)), r"dimension 2.*3 coefficients: intercept, age, dose"),
        (lambda: DiagonalGaussian(np.zeros(4), np.ones(4)), r"dimension 4.*3 coefficients"),
    ],
)
def test_a_prior_of_the_wrong_shape(prior, message):
    with pytest.raises(CavityError, match=message):
        cavity.models.logistic_regression(["age", "dose"], prior=prior())


def test_a_prior_of_the_wrong_family():
    with types_unchecked(), pytest.raises(CavityError, match="must be a Gaussian, not a Gamma"):
        cavity.models.logistic_regression(["age", "dose"], prior=Gamma(np.zeros(3), np.ones(3)))


def fit_two(**options):
    return cavity.run(cavity.PVI(MODELS["linear"]()), {"leeds": (X, Y), "york": (X[:5], Y[:5])}, **options)


def test_an_unknown_client_cannot_leave():
    with pytest.raises(ProtocolError, match=r"client 'hull' is not a member; the members are leeds, york"):
        fit_two().withdraw("hull")


def test_a_known_client_cannot_join():
    with pytest.raises(ProtocolError, match=r"client 'york' is a member already; a second one needs another name"):
        fit_two().join("york", (X, Y))


def test_bad_data_cannot_join():
    with pytest.raises(DataError, match=r"client 'hull': the outcome y holds text"):
        fit_two().join("hull", (X, ["yes"] * 12))


def test_a_corrupt_checkpoint_starts_no_work(no_work, tmp_path):
    (tmp_path / "checkpoint.npz").write_bytes(b"not an archive")
    with pytest.raises(CavityError, match=r"checkpoint\.npz: .*restart the run"):
        cavity.resume(tmp_path, {"leeds": (X, Y)})


def test_one_class_over_all_clients_is_worth_a_warning():
    clients = {"leeds": (X, np.ones(12)), "york": (X, np.ones(12))}
    with pytest.warns(UserWarning, match=r"the outcome is 1 in every row of every client.*coding"):
        cavity.run(cavity.PVI(MODELS["logistic"]()), clients, rounds=1)


def test_one_class_at_one_client_is_ordinary():
    clients = {"leeds": (X, np.ones(12)), "york": (X, np.zeros(12))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = cavity.run(cavity.PVI(MODELS["logistic"]()), clients)
    assert fit.converged


def rows_of(clients, model="linear"):
    return prepare_clients(MODELS[model](), clients)["york"].batch


AS_ARRAYS = rows_of({"york": (X, Y)})
FRAME = pd.DataFrame(X, columns=["age", "dose"], index=[f"patient {i}" for i in range(12)])


@pytest.mark.parametrize(
    "data",
    [
        (X.tolist(), Y.tolist()),
        (tuple(map(tuple, X)), Y.astype(bool)),
        (X, Y[:, None]),
        {"x": X, "y": Y},
        (FRAME, pd.Series(Y)),
        (FRAME, pd.DataFrame({"ill": Y})),
        (FRAME[["dose", "age"]], pd.Series(Y)),
        (FRAME.assign(name="somebody"), Y),
        (FRAME.astype("Float64"), pd.Series(Y, dtype="boolean")),
        (pd.DataFrame(X), Y),
        (FRAME.astype(object), Y),
    ],
    ids=[
        "lists",
        "tuples",
        "y as a column",
        "dict",
        "frame",
        "frames",
        "columns in another order",
        "a column too many",
        "nullable",
        "columns without names",
        "objects",
    ],
)
def test_what_is_understood(data):
    for ours, theirs in zip(rows_of({"york": data}), AS_ARRAYS, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_without_names_takes_columns_by_position():
    data = prepare_clients(cavity.models.linear_regression(2), {"york": (FRAME[["dose", "age"]], Y)})
    np.testing.assert_array_equal(data["york"].batch[0], X[:, ::-1])


def test_predictions_find_columns_by_name_too():
    fit = fit_two()
    np.testing.assert_array_equal(fit.predict(FRAME[["dose", "age"]]).mean, fit.predict(X).mean)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((FRAME.rename(columns={"dose": "dosis"}), Y), r"column 'dose' not found; the table has age, dosis"),
        ((pd.DataFrame(X, columns=["a", "b"]), Y), r"column 'age' not found; the table has a, b"),
        ((FRAME[["age"]], Y), r"column 'dose' not found; the table has age"),
        ((FRAME.assign(dose="high"), Y), r"column 'dose' holds text such as 'high'"),
        ((FRAME.assign(dose=pd.Categorical(["low"] * 12)), Y), r"column 'dose' holds text such as 'low'"),
        ((FRAME.assign(age=pd.NA), Y), r"column 'age' has 12 missing"),
        ((FRAME.assign(age=[None] * 12), Y), r"column 'age' has 12 missing"),
        ((FRAME, pd.Series([None, *Y[1:]], dtype="Float64")), r"the outcome y has 1 missing.*\(rows 0\)"),
        ((FRAME.assign(age=pd.Timestamp("2020-01-01")), Y), r"column 'age' holds .*2020.*code it as numbers"),
        (
            (pd.DataFrame({"age": pd.to_datetime(["2020-01-01"]), "dose": pd.to_datetime(["2020-01-01"])}), [1.0]),
            r"2020",
        ),
        ((FRAME.iloc[:0], pd.Series(Y[:0])), r"it has no rows"),
        (FRAME, r"a regression needs a pair"),
    ],
    ids=[
        "renamed",
        "others",
        "missing",
        "text",
        "categories",
        "NA",
        "None",
        "missing y",
        "a date",
        "dates",
        "no rows",
        "no y",
    ],
)
def test_tables_that_cannot_be_used(no_work, data, message):
    with pytest.raises(DataError, match=f"client 'york': .*{message}"):
        cavity.run(cavity.PVI(MODELS["linear"]()), {"leeds": (X, Y), "york": data})


class Sick(Engine):
    """A local engine in which one client's arithmetic fails for a while."""

    def __init__(self, engine, name, times, spoil):
        self.engine, self.name, self.times, self.spoil = engine, name, times, spoil

    def submit(self, message):
        self.engine.submit(message)

    def collect(self, num_replies):
        replies = []
        for reply in self.engine.collect(num_replies):
            if reply.client == self.name and self.times > 0:
                self.times -= 1
                reply = replace(reply, update=self.spoil(reply.update))
            replies.append(reply)
        return replies

    def client_states(self):
        return self.engine.client_states()


def spoil_delta(value, leaf="precision"):
    def spoil(update):
        delta = replace(update.delta, **{leaf: np.full_like(getattr(update.delta, leaf), value)})
        return replace(update, delta=delta)

    return spoil


def run_with_a_sick_client(times, spoil, schedule, rounds, *, held_by_clients=False, tolerance=0.0):
    algorithm = cavity.PVI(MODELS["linear"]())
    data = prepare_clients(algorithm.model, {"leeds": (X, Y), "york": (X[:5], Y[:5])})
    engine = LocalEngine(algorithm, data, held_by_clients=held_by_clients)
    server = training.open_federation(algorithm, schedule, list(data), 0, held_by_clients=held_by_clients)
    stopping = training.Stopping(rounds, tolerance)
    return training.run(algorithm, Sick(engine, "york", times, spoil), schedule, server, [], stopping)


@thorough
@pytest.mark.parametrize("held_by_clients", [False, True])
@pytest.mark.parametrize("schedule", [Synchronous(), Sequential()], ids=["synchronous", "sequential"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("leaf", ["precision", "precision_mean"])
def test_a_reply_that_is_no_number_is_refused_and_logged(caplog, leaf, value, schedule, held_by_clients):
    spoil = spoil_delta(value, leaf)
    with caplog.at_level(logging.WARNING, logger="cavity"):
        server, history, _ = run_with_a_sick_client(2, spoil, schedule, 6, held_by_clients=held_by_clients)
    healthy = fit_two(rounds=6, tolerance=0.0, schedule=schedule, factors="clients" if held_by_clients else "server")
    assert distance(server.posterior, healthy.posterior) < 1e-9
    refusals = [record.getMessage() for record in caplog.records]
    assert len(refusals) == 2
    assert all("client 'york'" in text and "NaN or an infinity" in text for text in refusals)
    assert sum(record["refused"] for record in history) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numbers_of_any_width_are_looked_at(dtype):
    good, bad = jnp.ones(2, dtype), jnp.array([1.0, jnp.nan], dtype)
    assert ledger.is_finite({"delta": good, "count": 3})
    assert not ledger.is_finite({"delta": bad})
    assert ledger.to_host(good).dtype == np.float64


def test_a_client_that_stays_sick_is_never_merged(caplog):
    server, history, reason = run_with_a_sick_client(10**6, spoil_delta(np.nan), Synchronous(), 5, tolerance=1e-6)
    assert reason == "rounds"  # a client that never replied has not converged
    assert history[-1]["gap"] == np.inf
    assert distance(server.entries["york"], ledger.to_host(cavity.PVI(MODELS["linear"]()).entries.initial())) == 0.0
    alone = cavity.run(cavity.PVI(MODELS["linear"]()), {"leeds": (X, Y)})
    assert distance(server.posterior, alone.posterior) < 1e-9


SCHEDULES = [Synchronous(), Sequential(), Asynchronous()]


@thorough
@pytest.mark.parametrize("held_by_clients", [False, True], ids=["server-held", "client-held"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__.lower())
def test_a_client_with_improper_updates_does_not_stop_the_others(caplog, schedule, held_by_clients):
    """Each reply is refused by name; after enough of them the client is set aside, and the others converge."""
    with caplog.at_level(logging.WARNING, logger="cavity"):
        server, history, reason = run_with_a_sick_client(
            10**6, spoil_delta(-1e6), schedule, 100, held_by_clients=held_by_clients, tolerance=1e-9
        )
    alone = cavity.run(cavity.PVI(MODELS["linear"]()), {"leeds": (X, Y)}, tolerance=1e-9)
    assert reason == "tolerance"
    assert history[-1]["missing"] == ["york"]
    assert distance(server.posterior, alone.posterior) < 1e-9
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == MAX_REFUSALS + 1
    assert all("client 'york'" in line and "alone makes the posterior improper" in line for line in said[:-1])
    assert "'york' is set aside" in said[-1]


def test_a_client_that_is_set_aside_can_be_asked_again():
    server, _, _ = run_with_a_sick_client(10**6, spoil_delta(-1e6), Synchronous(), 100, tolerance=1e-9)
    assert server.active == ("leeds",)
    assert ledger.readmit(server).active == ("leeds", "york")


def test_a_refused_report_is_no_sign_of_convergence():
    """Otherwise a client could end a run by a gap of zero, without its data in it."""

    def spoil(update):
        return spoil_delta(-1e6)(replace(update, report=replace(update.report, gap=np.asarray(0.0))))

    _, history, reason = run_with_a_sick_client(10**6, spoil, Synchronous(), 3, tolerance=1e-6)
    assert (reason, history[-1]["gap"]) == ("rounds", np.inf)


def test_when_no_reply_can_be_used_the_run_ends():
    algorithm = cavity.PVI(MODELS["linear"]())
    engine = LocalEngine(algorithm, prepare_clients(algorithm.model, {"york": (X, Y)}))
    server = training.open_federation(algorithm, Synchronous(), ["york"], 0)
    sick = Sick(engine, "york", 10**6, spoil_delta(np.nan))
    with pytest.raises(RuntimeError, match=r"no client's reply could be used.*york.*NaN"):
        training.run(algorithm, sick, Synchronous(), server, [], training.Stopping())


@pytest.mark.parametrize("name", ["leeds", "york"])
def test_a_gap_that_is_nan_is_no_convergence(name):
    """Whichever place the client has: Python's max() would overlook a NaN that is not the first."""

    def spoil(update):
        return replace(update, report=replace(update.report, gap=np.asarray(np.nan)))

    algorithm = cavity.PVI(MODELS["linear"]())
    data = prepare_clients(algorithm.model, {"leeds": (X, Y), "york": (X[:5], Y[:5])})
    sick = Sick(LocalEngine(algorithm, data), name, 10**6, spoil)
    server = training.open_federation(algorithm, Synchronous(), list(data), 0)
    _, history, reason = training.run(algorithm, sick, Synchronous(), server, [], training.Stopping(4, 1e-6))
    assert reason == "rounds"
    assert np.isnan(history[-1]["gap"])
