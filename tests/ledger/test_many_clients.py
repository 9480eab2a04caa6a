"""The ledger of very many clients: a round costs as much as work in it, not as there are members."""

import numpy as np
import pytest

from cavity import ledger, training
from cavity.core.messages import Acknowledgement, ClientRecord, Clients
from cavity.errors import ProtocolError
from cavity.io import serialization
from cavity.schedules import SampledCount
from cavity.simulation.streaming import StreamingEngine
from tests.marks import thorough
from tests.simulation.test_streaming import Averaging, Lazy, Mean, make

MANY = [f"client-{i}" for i in range(200_000)]


class Crowd(Lazy):
    """Very many clients, of whom a few are ever loaded."""

    @property
    def names(self):
        return MANY

    def load(self, names):
        return [make(name) for name in names]


def test_a_mapping_of_members_like_a_dict():
    """Whatever is done to it, it is the dict that would have been."""
    names = ["leeds", "york", "hull"]
    clients, plain = Clients.new(names), dict.fromkeys(names, ClientRecord())
    worked = ClientRecord(sequence=3, waiting=7, settled=Acknowledgement(2, 0.5))
    for change in ({"york": worked}, {"bath": ClientRecord()}, {"york": ClientRecord(sequence=4), "hull": worked}):
        clients, plain = clients | change, plain | change
        assert list(clients.items()) == list(plain.items())
    assert clients.waiting == ("hull",)
    assert dict(clients.without("york")) == {name: record for name, record in plain.items() if name != "york"}
    assert "york" not in clients.without("york")
    with pytest.raises(KeyError, match="whitby"):
        clients["whitby"]
    assert serialization.from_bytes(serialization.to_bytes(clients)) == clients


@thorough
def test_a_round_goes_through_those_alone_who_worked(monkeypatch):
    """Ten of hundreds of thousands cost milliseconds only if nothing goes through all of them in every round."""

    passed = []

    def counted(clients):
        for name in clients.roster.names:
            passed.append(name)
            yield name

    algorithm, schedule = Averaging(None, Mean()), SampledCount(3)
    engine = StreamingEngine(algorithm, Crowd(), chunk=3)
    server = training.open_federation(algorithm, schedule, MANY, 0)
    roster = server.clients.roster
    seen = set()
    monkeypatch.setattr(Clients, "__iter__", counted)
    for _ in range(20):
        server, record = training.run_round(algorithm, engine, schedule, server)
        seen |= record["gaps"].keys()
        assert len(record["gaps"]) == 3
        assert record["gap"] == np.inf  # of those who have not replied nothing is known
    engine.close()
    assert len(passed) < 1000  # checks of types look at the first
    assert server.clients.roster is roster
    assert server.clients.records.keys() == seen
    assert server.entries == {}
    assert server.idle is server.names
    with pytest.raises(ProtocolError, match=r"'whitby' is not a member.* and 199,980 others"):
        ledger.dispatch(algorithm, server, ["whitby"])


def test_a_checkpoint_of_very_many_is_small():
    server = training.open_federation(Averaging(None, Mean()), SampledCount(3), MANY, 0)
    content = serialization.to_bytes(server)
    assert len(content) < 25 * len(MANY)
    assert serialization.from_bytes(content).names == server.names
