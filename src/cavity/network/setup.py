"""Setup of a study over a network: the scaling of its columns and the start of its method, before the first round.

Each is computed once, from the clients that are connected at the start, and kept in the run's directory. The scaling,
and the prior with it, then stay the same when clients leave or join. Of the clients' sums the numbers of rows are kept,
for the report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxtyping import PyTree

from cavity import training
from cavity.core import Algorithm, Engine
from cavity.core.client_data import owned_rows
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


class Setup:
    """Finds the `RunConfig` of a study.

    Args:
        study: the agreed study.
        directory: of the run.
        session: with the clients.
        members: the clients that take part.
        gather: waits for the clients that are needed to start, and returns how many these are.
        engine: makes the engine for a method and a run configuration.
        notify: called with lines about the progress.
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
        notify: Callable[[str], None],
    ):
        self._study, self._directory, self._session, self._members = study, directory, session, members
        self._gather, self._engine, self._notify = gather, engine, notify

    @property
    def names(self) -> list[str]:
        """The clients that start: those whose sums gave the scaling, or all that are connected."""
        found = self._found()
        known = [] if found is None else [name for name in found["clients"] if name in self._members.allowed]
        return known or self._members.connected

    @property
    def rows(self) -> dict[str, int]:
        """The numbers of rows of clients that sent sums; empty where rows have weights, whose sum is sent instead."""
        found = self._found() if self._study.model.weights is None else None
        return {} if found is None else dict(found.get("rows", {}))

    def run_config(self) -> RunConfig | None:
        """Scaling and start, read from the directory if they are there; None if the server is asked to stop."""
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
        return RunConfig(scaling, start=read_tree(file, self._session.config.types))

    def _scaling(self) -> Scaling | None:
        study = self._study
        if not study.summed_columns and not study.scales_design:
            return study_scaling(study)
        if (found := self._found()) is not None:
            return found["scaling"]
        known: dict[str, Sums] = {}
        while True:
            least = self._gather()
            if self._members.stopping:
                return None
            if study.summed_columns:
                known |= self._sums([name for name in self._members.connected if name not in known])
                for name, reason in self._out_of_bounds(known).items():
                    del known[name]  # it is asked again; the other clients are not affected
                    self._refuse(name, reason)
            names = [name for name in self._members.connected if name in known or not study.summed_columns]
            scaling = self._scaled_by(names, known, least) if len(names) >= least else None
            if scaling is not None:
                self._notify(f"columns are scaled by the sums of {len(names)} clients; the scaling is now fixed")
                rows = {name: int(known[name].num_rows) for name in names if name in known}
                found = {"clients": names, "scaling": scaling, "rows": rows}
                write_atomically(self._directory / SCALING, serialization.to_bytes(found))
                return scaling
            self._session.sleep(1.0)

    def _scaled_by(self, names: Sequence[str], known: dict[str, Sums], least: int) -> Scaling | None:
        """The scaling by the sums of these clients; None if fewer than `least` of them respond."""
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
        """Clients with implausible sums, and why; `before` has the sums of the columns, to compare numbers of rows."""
        found = out_of_proportion(sums)
        most, rows = max_total_rows(self._study), {name: float(own.num_rows) for name, own in sums.items()}
        if rows and sum(rows.values()) > most:
            largest = max(rows, key=lambda name: rows[name])
            found[largest] = f"all clients together would have more than `max_total_rows` = {most:,} rows"
        for name, own in (before or {}).items():
            if name in rows and rows[name] != float(own.num_rows):
                found[name] = f"it had {float(own.num_rows):g} rows before, and has {rows[name]:g} now"
        return found

    def _found(self) -> dict[str, PyTree] | None:
        file = self._directory / SCALING
        if not file.exists():
            return None
        found = read_tree(file)
        if not isinstance(found, dict) or not fits_study(self._study, found.get("scaling")):
            raise CheckpointError(f"{file}: not the scaling of this study; delete the folder and restart")
        return found

    def _sums(self, names: Sequence[str], scaling: Scaling | None = None) -> dict[str, Sums]:
        """Usable sums by client: of the columns or, given their scaling, of the formula's matrix."""
        envelopes = self._session.ask_all(Kind.SUMS, names, {"scaling": scaling}, self._session.config.seconds)
        found = {name: envelope.body.get("sums") for name, envelope in envelopes.items()}
        study = self._study
        asked = (study.summed_columns, study.farthest) if scaling is None else (study.design_names, {})
        checked = {name: self._checked(name, found[name], *asked) for name in names if name in found}
        return {name: sums for name, sums in checked.items() if sums is not None}

    def _checked(self, name: str, sums: PyTree, columns: tuple[str, ...], farthest: Mapping[str, float]) -> Sums | None:
        """The sums of a client after all checks; None if they are refused."""
        reason = reason_to_refuse(
            sums, columns, farthest, max_total_rows(self._study), weighted=self._study.model.weights is not None
        )
        if reason is None:
            return sums
        self._refuse(name, reason)
        return None

    def _refuse(self, name: str, reason: str) -> None:
        logger.warning("client %r: its sums are refused: %s", name, reason)
        self._notify(f"the sums of {name} are refused: {reason}")

    def _start(self, first: Algorithm, run_config: RunConfig) -> PyTree:
        """The posterior that the method's initialisation finds, over the same network; None if stopped."""
        schedule, names = Synchronous(), [*self.names, *owned_rows(first.model)]
        server = training.open_federation(first, schedule, names, self._study.run.seed)
        self._notify("initialisation started")
        stopping = Stopping(initialisation.MAX_ROUNDS, initialisation.TOLERANCE, asked=lambda: self._members.stopping)
        engine = self._engine(first, run_config)
        server, history, stopped = training.run(first, engine, schedule, server, [], stopping)
        self._notify(f"initialisation done after {len(history)} rounds")
        return None if stopped == "asked" else server.posterior
