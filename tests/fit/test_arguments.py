"""Wrong arguments of `run` raise an error that says what was expected and what to do."""

import numpy as np
import pytest

import cavity
from cavity.errors import CavityError
from tests.contracts.faults import types_unchecked

MODEL = cavity.models.linear_regression(1, noise_sd=1.0)
CLIENTS = {"leeds": (np.arange(6.0)[:, None], np.arange(6.0)), "york": (np.ones((4, 1)), np.zeros(4))}


class NoClients(cavity.ClientSource):
    """A source without clients."""

    names = ()

    def load(self, names):
        return []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((MODEL, CLIENTS), {}, r"an algorithm, not a model; give an algorithm such as PVI\(model\)"),
        (("PVI", CLIENTS), {}, r"an algorithm, not a str; give an algorithm such as PVI\(model\)"),
        ((cavity.PVI, CLIENTS), {}, r"give an algorithm such as PVI\(model\)"),
        ((cavity.PVI(MODEL), {}), {}, "there are no clients; give a dict with at least one name -> data"),
        ((cavity.PVI(MODEL), [1, 2]), {}, "clients must be a dict of name -> data, not a list; give for example"),
        ((cavity.PVI(MODEL), None), {}, "clients must be a dict of name -> data, not None"),
        ((cavity.PVI(MODEL), NoClients()), {}, "the source has no clients; it must name at least one"),
        ((cavity.PVI(MODEL), {3: CLIENTS["york"]}), {}, "client names must be strings; 3 is an int"),
        ((cavity.PVI(MODEL), {"leeds": "rows.csv"}), {}, "client 'leeds': "),
        ((cavity.PVI(MODEL), {"leeds": None}), {}, "client 'leeds': "),
        ((cavity.PVI(MODEL), {"leeds": 7}), {}, "client 'leeds': "),
        ((cavity.PVI(MODEL), CLIENTS), {"rounds": 0}, "rounds must be a whole number of at least 1, .* it is 0"),
        ((cavity.PVI(MODEL), CLIENTS), {"rounds": 2.5}, "rounds must be a whole number of at least 1, .* it is 2.5"),
        ((cavity.PVI(MODEL), CLIENTS), {"tolerance": -1e-6}, "tolerance must be a number of at least 0; it is -1e-06"),
        (
            (cavity.PVI(MODEL), CLIENTS),
            {"tolerance": "small"},
            "tolerance must be a number .* it is 'small'",
        ),
        ((cavity.PVI(MODEL), CLIENTS), {"tolerance": float("nan")}, "tolerance must be a number of at least 0"),
        ((cavity.PVI(MODEL), CLIENTS), {"seed": -1}, "seed must be a whole number of at least 0; it is -1"),
        ((cavity.PVI(MODEL), CLIENTS), {"checkpoint_seconds": -1}, "checkpoint_seconds must be a number of at least 0"),
        ((cavity.PVI(MODEL), CLIENTS), {"chunk": 0}, "chunk must be a whole number of at least 1"),
        (
            (cavity.PVI(MODEL), CLIENTS),
            {"schedule": "sequential"},
            r"schedule must be a schedule such as cavity.schedules.Sequential\(\), not a str",
        ),
    ],
)
def test_wrong_arguments(arguments, options, message):
    with types_unchecked(), pytest.raises(CavityError, match=message):
        cavity.run(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "message"), [({"rounds": 0}, "rounds must be"), ({"tolerance": -1.0}, "tolerance must be")]
)
def test_wrong_arguments_of_refine(options, message):
    fit = cavity.run(cavity.PVI(MODEL), CLIENTS)
    with pytest.raises(CavityError, match=message):
        fit.refine(**options)


def test_numbers_from_numpy_are_numbers():
    with types_unchecked():
        fit = cavity.run(cavity.PVI(MODEL), CLIENTS, rounds=np.int64(2), tolerance=np.float32(0.0))
    assert len(fit.history) == 2
