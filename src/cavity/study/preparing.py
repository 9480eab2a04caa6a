"""What a study over a network needs before its first round: the scaling of its columns, and a start to go out from.

Each is found once, from the clients that begin, and kept in the run's directory. A client sends its sums once, also
where the run has to begin anew because the others have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cavity import federation, running, wire
from cavity.engines.clientele import Clientele
from cavity.engines.letters import Kind, Setting
from cavity.federation import Stopping
from cavity.interfaces import Algorithm, Engine
from cavity.schedules import Synchronous
from cavity.store.directory import write_atomically
from cavity.study.building import study_algorithm, study_scaling
from cavity.study.members import Members
from cavity.study.scaling import Scaling, Sums
from cavity.study.schema import Study

SUMS, START = "sums.npz", "start.npz"


class Preparing:
    """Finds a study's `Setting`.

    Args:
        study: what was agreed.
        directory: of the run.
        clientele: the clients.
        members: who takes part.
        gather: waits until those are there who are to begin; how many those are at least.
        engine: for a method and a setting.
        say: life signs.
    """

    def __init__(
        self,
        study: Study,
        directory: Path,
        clientele: Clientele,
        members: Members,
        *,
        gather: Callable[[], int],
        engine: Callable[[Algorithm, Setting], Engine],
        say: Callable[[str], None],
    ):
        self._study, self._directory, self._clientele, self._members = study, directory, clientele, members
        self._gather, self._engine, self._say = gather, engine, say

    @property
    def names(self) -> list[str]:
        """Who begins: those whose sums gave the scaling, or all that are here."""
        return list(self._known()) if self._study.federated_columns else self._members.here

    def setting(self, *, resuming: bool) -> Setting | None:
        """Scaling and start, as they are if a run is resumed; None if the server is to stop meanwhile."""
        scaling = self._scaling(resuming)
        if scaling is None:
            return None
        scout, file = study_algorithm(self._study, scaling).scout, self._directory / START
        if scout is None:
            return Setting(scaling)
        if not file.exists():
            found = self._start(scout, Setting(scaling, scouting=True))
            if found is None:
                return None
            write_atomically(file, wire.to_bytes(found))
        return Setting(scaling, start=wire.from_bytes(file.read_bytes(), self._clientele.terms.types))

    def _scaling(self, resuming: bool) -> Scaling | None:
        study = self._study
        if not study.federated_columns:
            return study_scaling(study)
        known = self._known()
        while not resuming:
            least = self._gather()
            if self._members.stopping:
                return None
            known = {name: known[name] for name in self._members.allowed if name in known}  # who has left is forgotten
            known |= self._sums([name for name in self._members.here if name not in known])
            if len(known) >= least:
                self._say(f"the sums of {len(known)} clients give the scaling of {', '.join(study.federated_columns)}")
                write_atomically(self._directory / SUMS, wire.to_bytes(known))
                break
            self._clientele.sleep(1.0)
        return study_scaling(study, list(known.values()))

    def _known(self) -> dict[str, Sums]:
        file = self._directory / SUMS
        return wire.from_bytes(file.read_bytes()) if file.exists() else {}

    def _sums(self, names: Sequence[str]) -> dict[str, Sums]:
        """Those that can be used, by client."""
        letters = self._clientele.ask_all(Kind.SUMS, names, {}, self._clientele.terms.seconds)
        found: dict[str, Any] = {name: letters[name].body.get("sums") for name in names if name in letters}
        return {name: sums for name, sums in found.items() if self._usable(name, sums)}

    def _usable(self, name: str, sums: Any) -> bool:
        width = (len(self._study.federated_columns),)
        fits = isinstance(sums, Sums) and sums.columns == self._study.federated_columns
        fits = fits and np.shape(sums.sum) == width and np.shape(sums.sum_of_squares) == width
        if not fits:
            self._say(f"the sums of {name} are refused: they are not those that the study asks for")
        return fits

    def _start(self, scout: Any, setting: Setting) -> Any:
        """What the scout finds, over the same network."""
        schedule, everybody = Synchronous(), [*self.names, *scout.model.server_rows()]
        server = federation.open_federation(scout, schedule, everybody, self._study.run.seed)
        self._say("searching for a start")
        stopping = Stopping(running.SCOUT_ROUNDS, running.SCOUT_TOLERANCE, asked=lambda: self._members.stopping)
        engine = self._engine(scout, setting)
        server, history, stopped = federation.run(scout, engine, schedule, server, [], stopping)
        self._say(f"a start was found in {len(history)} rounds")
        return None if stopped == "asked" else server.posterior
