"""Who takes part in a study over a network: those on its list, without those who have left, as they come and go."""

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
    """The clients of a run, and what is asked of it.

    Args:
        study: what was agreed.
        directory: of the run; who was withdrawn is written there, and stays so.
        clientele: who is connected, and who wants to leave.
        say: life signs.
    """

    def __init__(self, study: Study, directory: Path, session: Session, say: Callable[[str], None]):
        self._study, self._file, self._clientele, self._say = study, directory / WITHDRAWN, session, say
        self._requests = Requests(directory)
        self._withdrawn: list[str] = json.loads(self._file.read_text()) if self._file.exists() else []

    @property
    def allowed(self) -> list[str]:
        """All but the withdrawn."""
        return [name for name in self._study.clients if name not in self._withdrawn]

    @property
    def here(self) -> list[str]:
        """Those of them that are connected."""
        connected = self._clientele.here()
        return [name for name in self.allowed if name in connected]

    @property
    def stopping(self) -> bool:
        """Whether the server is asked to stop."""
        return STOP in self._requests.pending()

    @property
    def interrupted(self) -> bool:
        """Whether anything is asked for."""
        return bool(self._requests.pending() or self._clientele.leaving)

    def stopped(self) -> None:
        """The server has stopped, as it was asked to."""
        self._requests.done(STOP)

    def least(self, wanted: int | None) -> int:
        """How many are needed to begin: so many, or all."""
        if not self.allowed:
            raise CavityError("all clients have been withdrawn")
        return min(wanted or len(self.allowed), len(self.allowed))

    def have_changed(self, taking_part: Sequence[str]) -> bool:
        """Whether somebody is to go or has come since."""
        return self.interrupted or bool(self._leftover(taking_part) or self._newcomers(taking_part))

    def need_new_run(self, algorithm: Algorithm, server: ServerState) -> bool:
        """Whether a change of members makes all that was computed worthless.

        Where the server has no row of a client, it cannot take it out again. Scaling and prior stay in any case.
        """
        has_rows = algorithm.server.entries is not None and not server.held_by_clients
        gone = {*self._asked_to_go(), *self._withdrawn} & set(server.names)
        if has_rows or not gone:
            return False
        self.withdraw_early()
        return True

    def withdraw_early(self) -> None:
        """From the list alone; where there is no round yet, there is nothing else to forget."""
        for name in self._asked_to_go():
            self._note(name)
            self._say(f"{name} takes no part")

    def changed(self, algorithm: Algorithm, server: ServerState) -> ServerState:
        """Withdraw who is to go, and take in who has come."""
        # the list comes first: one that is on it and still a member was cut short by a crash
        for name in dict.fromkeys([*self._asked_to_go(), *self._withdrawn]):
            self._note(name)
            if name in self._leftover(server.names):
                server = ledger.withdraw(algorithm, ledger.abandon(server, server.clients.waiting), name)
                self._say(f"{name} is withdrawn; the others go on without it")
        for name in self._newcomers(server.names):
            server = ledger.join(algorithm, server, name)
            server = replace(server, method=algorithm.server.initial_state(len(server.clients)))
            self._say(f"{name} has joined")
        if not set(server.names) & set(self._study.clients):
            raise CavityError("all clients have left or been withdrawn; there is nothing to go on with")
        return server

    def _asked_to_go(self) -> list[str]:
        asked = [request.removeprefix(WITHDRAW) for request in self._requests.pending() if request != STOP]
        return [*asked, *sorted(self._clientele.leaving)]

    def _note(self, name: str) -> None:
        if name not in self._withdrawn:
            self._withdrawn.append(name)
            write_atomically(self._file, json.dumps(self._withdrawn).encode())
        self._requests.done(WITHDRAW + name)
        self._clientele.leaving.discard(name)

    def _leftover(self, taking_part: Sequence[str]) -> list[str]:
        return [name for name in self._withdrawn if name in taking_part and name in self._study.clients]

    def _newcomers(self, taking_part: Sequence[str]) -> list[str]:
        return [name for name in self.here if name not in taking_part]
