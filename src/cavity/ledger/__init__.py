"""The ledger: pure functions that keep the invariant, at the server (`server`) and at a client (`client`)."""

from cavity.core.host import is_finite, is_proper, to_host
from cavity.core.messages import JOINT, Change
from cavity.ledger.server import (
    Outcome,
    abandon,
    count_refusals,
    dispatch,
    entries_of,
    join,
    not_a_member,
    open_ledger,
    readmit,
    reason_to_refuse,
    rebuilt,
    receive,
    withdraw,
)

__all__ = [
    "JOINT",
    "Change",
    "Outcome",
    "abandon",
    "count_refusals",
    "dispatch",
    "entries_of",
    "is_finite",
    "is_proper",
    "join",
    "not_a_member",
    "open_ledger",
    "readmit",
    "reason_to_refuse",
    "rebuilt",
    "receive",
    "to_host",
    "withdraw",
]
