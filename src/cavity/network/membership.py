"""Membership: the clients of a study over a network as they join, leave and are withdrawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cavity import ledger
from cavity.core import Algorithm
from cavity.core.messages import ServerState
from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.network.run_directory import STOP, WITHDRAW, Requests
from cavity.network.session import Session
from cavity.study.schema import Study

WITHDRAWN = "withdrawn.json"


class Members:
    """The clients of a run, and the requests to it.

    Args:
        study: the agreed study.
        directory: of the run; the list of withdrawn clients is kept there.
        session: knows who is connected, and who asks to leave.
        notify: called with lines about the progress.
    """

    def __init__(self, study: Study, directory: Path, session: Session, notify: Callable[[str], None]):
        self._study, self._file, self._session, self._notify = study, directory / WITHDRAWN, session, notify
        self._requests = Requests(directory)
        self._withdrawn: list[str] = json.loads(self._file.read_text()) if self._file.exists() else []

    @property
    def allowed(self) -> list[str]:
        """The clients that have not been withdrawn."""
        return [name for name in self._study.clients if name not in self._withdrawn]

    @property
    def connected(self) -> list[str]:
        """The allowed clients that are connected."""
        connected = self._session.connected()
        return [name for name in self.allowed if name in connected]

    @property
    def stopping(self) -> bool:
        """Whether the server has been asked to stop."""
        return STOP in self._requests.pending()

    @property
    def interrupted(self) -> bool:
        """Whether there is any request."""
        return bool(self._requests.pending() or self._session.leaving)

    def stopped(self) -> None:
        """Remove the request to stop, after the server has stopped."""
        self._requests.done(STOP)

    def least(self, wanted: int | None) -> int:
        """The number of clients that the run needs to start: so many, or all."""
        if not self.allowed:
            raise CavityError("all clients have been withdrawn")
        return min(wanted or len(self.allowed), len(self.allowed))

    def have_changed(self, taking_part: Sequence[str]) -> bool:
        """Whether a client has to be withdrawn or has connected since."""
        return self.interrupted or bool(self._leftover(taking_part) or self._newcomers(taking_part))

    def need_new_run(self, algorithm: Algorithm, server: ServerState) -> bool:
        """Whether a withdrawal requires a new run.

        This is so where the server has no entry of the client, and so cannot remove it from the posterior. Scaling and
        prior stay as they are.
        """
        has_entries = algorithm.server.entries is not None and not server.held_by_clients
        gone = {*self._to_withdraw(), *self._withdrawn} & set(server.names)
        if has_entries or not gone:
            return False
        self.withdraw_early()
        return True

    def withdraw_early(self) -> None:
        """Withdraw clients before the first round: only the list changes."""
        for name in self._to_withdraw():
            self._note(name)
            self._notify(f"{name} has been withdrawn")

    def changed(self, algorithm: Algorithm, server: ServerState) -> ServerState:
        """The server's state after withdrawing and adding clients."""
        # the list is written first; a client on it that is still a member was interrupted by a crash
        for name in dict.fromkeys([*self._to_withdraw(), *self._withdrawn]):
            self._note(name)
            if name in self._leftover(server.names):
                server = ledger.withdraw(algorithm, ledger.abandon(server, server.clients.waiting), name)
                self._notify(f"{name} has been withdrawn; the others continue without it")
        for name in self._newcomers(server.names):
            server = ledger.join(algorithm, server, name)
            server = replace(server, method=algorithm.server.initial_state(len(server.clients)))
            self._notify(f"{name} has joined")
        if not set(server.names) & set(self._study.clients):
            raise CavityError("all clients have left or been withdrawn; no data are left")
        return server

    def _to_withdraw(self) -> list[str]:
        asked = [request.removeprefix(WITHDRAW) for request in self._requests.pending() if request != STOP]
        return [*asked, *sorted(self._session.leaving)]

    def _note(self, name: str) -> None:
        if name not in self._withdrawn:
            self._withdrawn.append(name)
            write_atomically(self._file, json.dumps(self._withdrawn).encode())
        self._requests.done(WITHDRAW + name)
        self._session.leaving.discard(name)

    def _leftover(self, taking_part: Sequence[str]) -> list[str]:
        return [name for name in self._withdrawn if name in taking_part and name in self._study.clients]

    def _newcomers(self, taking_part: Sequence[str]) -> list[str]:
        return [name for name in self.connected if name not in taking_part]
