"""What a study over a network needs before its first round: the scaling of its columns, and a start to go out from.

Each is found once, from the clients that begin, and kept in the run's directory. The scaling, and the prior with it,
is fixed from then on, whoever leaves or joins. The clients' sums are not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from cavity import training
from cavity.core import Algorithm, Engine
from cavity.errors import CheckpointError
from cavity.fit import initialisation
from cavity.io import serialization
from cavity.io.checkpoints import read_tree, write_atomically
from cavity.network.limits import max_total_rows
from cavity.network.membership import Members
from cavity.network.protocol import Kind, RunConfig
from cavity.network.session import Session
from cavity.schedules import Synchronous
from cavity.study.building import fits_study, study_algorithm, study_scaling
from cavity.study.scaling import Scaling, Sums, out_of_proportion, reason_to_refuse
from cavity.study.schema import Study
from cavity.training import Stopping

logger = logging.getLogger("cavity")
SCALING, START = "scaling.npz", "start.npz"


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
        session: Session,
        members: Members,
        *,
        gather: Callable[[], int],
        engine: Callable[[Algorithm, RunConfig], Engine],
        say: Callable[[str], None],
    ):
        self._study, self._directory, self._clientele, self._members = study, directory, session, members
        self._gather, self._engine, self._say = gather, engine, say

    @property
    def names(self) -> list[str]:
        """Who begins: those whose sums gave the scaling, or all that are here."""
        found = self._found()
        known = [] if found is None else [name for name in found["clients"] if name in self._members.allowed]
        return known or self._members.here

    def setting(self) -> RunConfig | None:
        """Scaling and start, as they are if they have been found; None if the server is to stop meanwhile."""
        scaling = self._scaling()
        if scaling is None:
            return None
        stage, file = study_algorithm(self._study, scaling).initialisation, self._directory / START
        if stage is None:
            return RunConfig(scaling)
        if not file.exists():
            found = self._start(stage.algorithm, RunConfig(scaling, initialising=True))
            if found is None:
                return None
            write_atomically(file, serialization.to_bytes(found))
        return RunConfig(scaling, start=read_tree(file, self._clientele.terms.types))

    def _scaling(self) -> Scaling | None:
        study = self._study
        if not study.federated_columns and not study.scales_design:
            return study_scaling(study)
        if (found := self._found()) is not None:
            return found["scaling"]
        known: dict[str, Sums] = {}
        while True:
            least = self._gather()
            if self._members.stopping:
                return None
            if study.federated_columns:
                known |= self._sums([name for name in self._members.here if name not in known])
                for name, reason in self._out_of_bounds(
                    known
                ).items():  # it is asked again, and nobody is stopped by it
                    del known[name]
                    self._refuse(name, reason)
            names = [name for name in self._members.here if name in known or not study.federated_columns]
            scaling = self._scaled_by(names, known, least) if len(names) >= least else None
            if scaling is not None:
                self._say(f"the sums of {len(names)} clients give the scaling; it stays, whoever leaves or joins")
                write_atomically(
                    self._directory / SCALING, serialization.to_bytes({"clients": names, "scaling": scaling})
                )
                return scaling
            self._clientele.sleep(1.0)

    def _scaled_by(self, names: Sequence[str], known: dict[str, Sums], least: int) -> Scaling | None:
        """By the sums of these clients; None where fewer than `least` of them answer."""
        totals = [known[name] for name in names if name in known]
        scaling = study_scaling(self._study, totals)
        if not self._study.scales_design:
            return scaling
        design = self._sums(names, scaling)
        for name, reason in self._out_of_bounds(design, known).items():
            del design[name]
            self._refuse(name, reason)
        return study_scaling(self._study, totals, list(design.values())) if len(design) >= least else None

    def _out_of_bounds(self, sums: Mapping[str, Sums], before: Mapping[str, Sums] | None = None) -> dict[str, str]:
        """Whose sums do not go with the others', with the reason; `before` has those of the columns themselves."""
        found = out_of_proportion(sums)
        most, rows = max_total_rows(self._study), {name: int(own.num_rows) for name, own in sums.items()}
        if rows and sum(rows.values()) > most:
            largest = max(rows, key=lambda name: rows[name])
            found[largest] = f"all clients together would have more than the {most:,} rows of `max_total_rows`"
        for name, own in (before or {}).items():
            if name in rows and rows[name] != int(own.num_rows):
                found[name] = f"it had {int(own.num_rows)} rows before, and now {rows[name]}"
        return found

    def _found(self) -> dict[str, Any] | None:
        file = self._directory / SCALING
        if not file.exists():
            return None
        found = read_tree(file)
        if not isinstance(found, dict) or not fits_study(self._study, found.get("scaling")):
            raise CheckpointError(f"{file}: it does not hold the study's scaling; delete the folder and start anew")
        return found

    def _sums(self, names: Sequence[str], scaling: Scaling | None = None) -> dict[str, Sums]:
        """Those that can be used, by client: of columns, or, given their scaling, of the formula's matrix."""
        envelopes = self._clientele.ask_all(Kind.SUMS, names, {"scaling": scaling}, self._clientele.terms.seconds)
        found: dict[str, Any] = {name: envelopes[name].body.get("sums") for name in names if name in envelopes}
        study = self._study
        asked = (study.federated_columns, study.farthest) if scaling is None else (study.design_names, {})
        return {name: sums for name, sums in found.items() if self._usable(name, sums, *asked)}

    def _usable(self, name: str, sums: Any, columns: tuple[str, ...], farthest: Mapping[str, float]) -> bool:
        reason = reason_to_refuse(sums, columns, farthest, max_total_rows(self._study))
        if reason is not None:
            self._refuse(name, reason)
        return reason is None

    def _refuse(self, name: str, reason: str) -> None:
        logger.warning("client %r: its sums are refused: %s", name, reason)
        self._say(f"the sums of {name} are refused: {reason}")

    def _start(self, first: Algorithm, setting: RunConfig) -> PyTree:
        """What the method's initialisation finds, over the same network."""
        schedule, everybody = Synchronous(), [*self.names, *first.model.server_entries()]
        server = training.open_federation(first, schedule, everybody, self._study.run.seed)
        self._say("searching for a start")
        stopping = Stopping(initialisation.MAX_ROUNDS, initialisation.TOLERANCE, asked=lambda: self._members.stopping)
        engine = self._engine(first, setting)
        server, history, stopped = training.run(first, engine, schedule, server, [], stopping)
        self._say(f"a start was found in {len(history)} rounds")
        return None if stopped == "asked" else server.posterior
