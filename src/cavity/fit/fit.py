"""What a run gives: the `Fit`, with summary, prediction, history, influence, and withdrawal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from cavity import ledger
from cavity.core import ClientSource, Data, LatentModel, ReportedModel, Schedule
from cavity.core.client_data import check_units, prepare_client, prepare_clients, unit_labels
from cavity.core.messages import ClientState, ServerState, is_server_owned
from cavity.core.progress import Watcher
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.evaluation import diagnostics, plausibility
from cavity.fit import execution, local_posterior
from cavity.fit.summary import Coefficients, Summary, summarise, summarise_draws
from cavity.io.checkpoints import RunDirectory
from cavity.ledger import client as client_ledger
from cavity.models.numpyro.globals_only import GlobalsOnly
from cavity.training import Observer, Record, Stopping

if TYPE_CHECKING:
    from cavity.evaluation.psis import ImportanceWeights
    from cavity.evaluation.verdict import Verdict


@dataclass(frozen=True)
class Fit:
    """A posterior and how it came about. Changing it (`refine`, `withdraw`, `join`) gives a new one.

    Attributes:
        algorithm: the method, with its model.
        server: the ledger: prior, rows, posterior, bookkeeping.
        history: one record per round.
        stopped: why the run ended: "tolerance" or "rounds".
        schedule: who worked when.
        clients: the clients' data or their source, where this process has them; None for a fit that was loaded without.
        client_states: what the clients keep to themselves.
        labels: the names of each client's units, for models with local latents.
        initial_rounds: rounds of the method's initialisation, before those of the history.
        closing: the server's version and the evidence at it, where they were found while the clients could be asked.
    """

    algorithm: Any
    server: ServerState
    history: list[Record]
    stopped: str
    schedule: Schedule
    clients: Mapping[str, Data] | ClientSource | None = None
    client_states: Mapping[str, ClientState] | None = None
    labels: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    initial_rounds: int = 0
    closing: tuple[int, float] | None = None

    @property
    def posterior(self) -> Any:
        """The posterior in the model's own units (`units`), with float64 numpy leaves.

        A regression by a formula computes with scaled columns; `coefficients` and `reported` are in those of the data.
        """
        return self.server.posterior

    @property
    def coefficients(self) -> Coefficients:
        """Means, standard deviations and covariance of all parameters, by name, in the units of the data."""
        model = self.algorithm.model
        if self._latent or not isinstance(self.posterior, Gaussian):
            raise CavityError(f"{type(model).__name__} has no coefficients; look at fit.summary() or fit.posterior")
        return self._coefficients(self.posterior)

    def _coefficients(self, q: Gaussian) -> Coefficients:
        model = self.algorithm.model
        with jax.enable_x64(True):
            q = ledger.to_host(q)
            if isinstance(model, ReportedModel):
                return Coefficients(model.parameter_names, *model.reported_moments(q))
            return Coefficients(model.parameter_names, np.asarray(q.mean), np.asarray(q.covariance))

    @property
    def units(self) -> str:
        """In which units the summary is, and in which `posterior` is where these are others."""
        model = self.algorithm.model
        if self._latent or isinstance(model, GlobalsOnly):
            return "the summary is on the model's own scale; fit.posterior is of unconstrained parameters"
        remarks = model.remarks if isinstance(model, ReportedModel) else ()
        return "; ".join(remarks) or "parameters are in the units of the data as they were given"

    @property
    def converged(self) -> bool:
        """Whether the run has settled: no client's data pull by more than the tolerance, or the method says so.

        SFVI and SFVI-Avg watch the trend of the bound and of the posterior. A posterior that cannot be right, at the
        edge of floating point or wider than the prior, has not converged, whatever ended the run.
        """
        settled = self.algorithm.convergence.settled(self.server.method)
        return (self.stopped == "tolerance" if settled is None else settled) and not self._doubts

    @property
    def _doubts(self) -> tuple[str, ...]:
        return plausibility.doubts(self.algorithm, self.server) if self.history else ()

    def summary(self, level: float = 0.9) -> Summary:
        """Mean, standard deviation and central interval of every parameter, by name; `print` shows a table.

        Where this process has the clients' data, the table says how good the approximation is (`verdict`).
        """
        from cavity.evaluation import verdict

        if (draws := self._named_draws(local_posterior.SUMMARY_DRAWS)) is not None:
            with jax.enable_x64(True):
                flat = np.asarray(jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws))
            summary = summarise_draws(flat, local_posterior.latent_names(draws), level, self._remarks())
        else:
            # where the prior is outside the family, the server's is but the base of its correction
            prior = None if any(map(is_server_owned, self.server.names)) else self.server.prior
            summary = self._summarised(self.posterior, prior, level)
        return replace(summary, checks=lambda: (verdict.remark(self),))

    def _summarised(self, posterior: Any, prior: Any, level: float) -> Summary:
        names, remarks = self.algorithm.model.parameter_names, self._remarks()
        if isinstance(posterior, Gaussian):
            return summarise(posterior, prior, names, level, remarks, moments=self._moments)
        prior = None if prior is None else self._reported(prior)
        return summarise(self._reported(posterior), prior, names, level, remarks)

    def _moments(self, q: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of every parameter in the units of the data, of a Gaussian."""
        found = self._coefficients(q)
        return found.mean, found.sd

    @cached_property
    def log_evidence(self) -> float:
        """A lower bound of log p(y) in nats, by which models of the same rows are compared (`cavity.compare`).

        It is the bound at this posterior, whatever the schedule and however far the run came; log p(y) itself, the
        constants of the likelihood included, where the family holds the posterior. `importance_weights().log_evidence`
        is closer elsewhere. Each client takes one expectation over its rows.
        """
        from cavity.evaluation import evidence

        return evidence.log_evidence(self)

    def importance_weights(self, num_draws: int = 2000, seed: int = 0) -> ImportanceWeights:
        """Draws of the posterior with their importance weights, prior x likelihood / posterior.

        All clients see the same draws, and each sends one number per draw: the log likelihood of its rows. `verdict`
        judges the posterior by such weights, of draws that reach further.

        Args:
            num_draws: of the posterior.
            seed: of the draws.
        """
        from cavity.evaluation import psis

        if num_draws < psis.FEWEST_DRAWS:
            raise CavityError(f"num_draws must be at least {psis.FEWEST_DRAWS}, not {num_draws}")
        chunks = execution.in_chunks(self.algorithm.model, self.needs_clients("weigh draws of the posterior"))
        return psis.importance_weights(self.algorithm, self.server.prior, self.posterior, chunks, num_draws, seed)

    @cached_property
    def verdict(self) -> Verdict:
        """How good the approximation is, with reasons and numbers: errors of means and sds, and corrected values.

        "exact for practical purposes"; "good" (errors below 5 %); "rough" (use the corrected values); "do not use"; or
        "not assessed", with the reason. `cavity.evaluation.verdict` has the rules and their limits.
        """
        from cavity.evaluation import verdict

        return verdict.verdict_of(self)

    @property
    def reported(self) -> Any:
        """The posterior of what `summary` shows: in the units of the data, where the model computes in others."""
        return self._reported(self.posterior)

    def _reported(self, q: Any) -> Any:
        model = self.algorithm.model
        with jax.enable_x64(True):
            return model.reported(q) if isinstance(model, ReportedModel) else q

    def _named_draws(self, num_draws: int, seed: int = 0) -> dict[str, jax.Array] | None:
        """Draws in the terms of the model's author, of a model whose parameters live on another scale; else None."""
        model = self.algorithm.model
        if self._latent:
            return local_posterior.global_draws(model, self.posterior, num_draws, seed)[1]
        if isinstance(model, GlobalsOnly):
            with jax.enable_x64(True):
                return jax.vmap(model.constrain)(self.posterior.sample(jax.random.key(seed), (num_draws,)))
        return None

    @property
    def _latent(self) -> bool:
        return isinstance(self.algorithm.model, LatentModel)

    def local(self, name: str) -> local_posterior.LocalPosterior:
        """A silo's own posterior of its local latents, where this process has its data."""
        if not self._latent:
            raise CavityError(f"{type(self.algorithm.model).__name__} has no local latents")
        self.needs_clients("look into a silo")
        if isinstance(self.clients, ClientSource) or name not in (self.clients or {}):
            raise CavityError(f"there is no silo {name!r}; there are {', '.join(self.server.names)}")
        return local_posterior.LocalPosterior(
            name=name,
            model=self.algorithm.model,
            shared=self.posterior,
            q=self.local_q(name),
            data=(self.clients or {})[name],
            labels=self.labels.get(name),
            num_samples=self.algorithm.structured.num_samples,
        )

    def local_q(self, name: str) -> Any:
        """q(Z_L | Z_G) of a silo after its last accepted reply, centred at the server's mean of Z_G."""
        state = (self.client_states or {})[name]
        kept = client_ledger.settled_local(state, self.server.clients[name].settled.sequence)
        with jax.enable_x64(True):
            q, mean = jax.tree.map(jax.numpy.asarray, (kept.q, self.posterior.q.mean))
            return q.recentred(mean - kept.centre) if hasattr(kept, "centre") else q

    def warm_start(self, algorithm: Any, *, precision_per_row: float | None = None) -> Fit:
        """What was found so far, for another method of the same model to go on with.

        SFVI-Avg first, then SFVI; or FedAvg as burn-in, then FedEP, FedSEP or FedPA. FedAvg's point becomes
        N(point, 1 / (c n_k)) as the factor of a client with n_k rows, so that its rows are not counted again.

        Args:
            algorithm: the other method.
            precision_per_row: c, after FedAvg; that of the scaled identity, where the other method has one.

        Example: `fit.hand_over(SFVI(model)).refine(10_000)`
        """
        from cavity.fit import warm_start

        return warm_start.warm_started(self, algorithm, precision_per_row)

    @property
    def parties(self) -> list[str]:
        """The clients, without the server's own row of a prior outside the family."""
        return [name for name in self.server.names if not is_server_owned(name)]

    def _remarks(self) -> tuple[str, ...]:
        last = self.history[-1] if self.history else None
        counts = {"client": len(self.parties), "round": len(self.history)}
        remarks = [", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())]
        if self.initial_rounds:
            remarks.append(f"started at the mode, which {self.initial_rounds} rounds before these found")
        doubts = self._doubts
        remarks += [f"not converged: {doubt}" for doubt in doubts]
        if self._latent:
            samples = self.algorithm.structured.num_samples
            remarks.append(f"variational, with K = {samples} importance sample{'' if samples == 1 else 's'} per unit")
            said = self.algorithm.convergence.describe(self.posterior, self.server.method)
            return tuple(remarks if doubts or said is None else [*remarks, said])
        if last is not None and not doubts and not self.converged:
            known = np.isfinite(last["gap"])
            why = f"the largest residual is {last['gap']:.1e} nats" if known else "the residual is not known yet"
            remarks.append(f"not converged: {why}; go on with fit.refine()")
        if last is not None and last["unconverged"]:
            remarks.append(f"{last['unconverged']} local solves ended at their step limit in the last round")
        if isinstance(self.algorithm.model, ReportedModel):
            remarks += self.algorithm.model.remarks
        return tuple(remarks)

    def predict(self, x: PyTree, *, num_draws: int | None = None, seed: int = 0, point: bool = False) -> Any:
        """A `Prediction`: the expected outcome at new rows, with its posterior sd and 90 % interval.

        Of a Gaussian process, a `FunctionPrediction` of the function and of outcomes.

        Args:
            x: features, as the clients have them (no intercept). With local latents, rows of units that nobody has;
                `fit.local(name).predict(x)` is for a silo's own.
            num_draws: average over so many posterior draws; None takes the closed form where there is one
                (for logistic regression a quadrature).
            seed: of the draws.
            point: predict with the posterior's mean alone, as methods without uncertainty do.
        """
        from cavity.fit import prediction

        return prediction.predicted(self, x, num_draws, seed, point)

    def refine(
        self,
        rounds: int = 100,
        tolerance: float = 1e-6,
        *,
        observers: Sequence[Observer] = (),
        metrics: Mapping[str, Callable[[Any], float]] | None = None,
        rounds_per_block: int | None = None,
        chunk: int | None = None,
        progress: bool | Watcher = False,
    ) -> Fit:
        """Go on for at least one more round, and for at most so many; other arguments as in `cavity.run`."""
        done = len(self.history)
        return execution.continue_run(
            self,
            Stopping(done + rounds, tolerance, at_least=done + 1),
            observers=observers,
            metrics=metrics,
            rounds_per_block=self.algorithm.defaults.rounds_per_block if rounds_per_block is None else rounds_per_block,
            chunk=chunk,
            progress=progress,
        )

    def learn(
        self,
        *hyperparameters: Any,
        steps: int = 100,
        rounds: int = 10,
        tolerance: float = 1e-5,
    ) -> Fit:
        """Move hyperparameters to where the free energy is highest, in turn with rounds that refine the posterior.

        The ledger keeps its rows: after a step the posterior is the new prior times the same factors, and the clients
        go on from there. The learned values are in `fit.algorithm.model`; `fit.prior_scales` are those of the prior.

        Args:
            *hyperparameters: such as `PriorScale()` and `NoiseSd()`, of `cavity.hyperparameters`.
            steps: at most so many.
            rounds: at most so many after each step.
            tolerance: stop where the free energy changes by less than this, in nats, if a value grows by a factor of e.

        Example: `fit.learn(cavity.hyperparameters.PriorScale(["dose", "age"], separate=True)).log_evidence`
        """
        from cavity.hyperparameters import learning

        return learning.learn(self, hyperparameters, steps, rounds, tolerance)

    @property
    def prior_scales(self) -> dict[str, float]:
        """The prior standard deviation of every parameter."""
        if isinstance(self.server.prior, Gaussian):
            _, scales = self._moments(self.server.prior)
        else:
            _, scales = diagnostics.moments(self._reported(self.server.prior))
        return dict(zip(self.algorithm.model.parameter_names, scales.tolist(), strict=True))

    def withdraw(self, name: str, rounds: int = 100, tolerance: float = 1e-6) -> Fit:
        """Forget a client: drop its row, and let the others refine to convergence without it."""
        self.needs_clients("withdraw a client")
        self._needs_factors()
        if is_server_owned(name):
            raise CavityError("the prior is not a client; it cannot be withdrawn")
        server = self._rescheduled(ledger.withdraw(self.algorithm, self.server, name))
        clients = self.clients
        if not isinstance(clients, ClientSource):
            clients = {key: data for key, data in (clients or {}).items() if key != name}
        states = {key: state for key, state in (self.client_states or {}).items() if key != name}
        fit = replace(self, server=server, clients=clients, client_states=states)
        return fit.refine(rounds, tolerance) if server.clients else replace(fit, stopped="tolerance")

    def join(self, name: str, data: PyTree, rounds: int = 100, tolerance: float = 1e-6) -> Fit:
        """Take in a client late: an empty row, and rounds to convergence with it."""
        self.needs_clients("add a client")
        if isinstance(self.clients, ClientSource):
            raise CavityError("clients that are streamed come from their source alone; add it there and run again")
        server = self._rescheduled(ledger.join(self.algorithm, self.server, name))
        method = self.algorithm.server.initial_state(len(server.clients))
        model, labels = self.algorithm.model, self.labels
        if self._latent:  # units are numbered in what has been prepared, so their names are compared here
            check_units(labels := {**labels, **unit_labels(model, {name: data})})
            clients = {**(self.clients or {}), **prepare_clients(model, {name: data})}
        else:
            clients = prepare_clients(model, {**(self.clients or {}), name: data})
        fit = replace(self, server=replace(server, method=method), clients=clients, labels=labels)
        return fit.refine(rounds, tolerance)

    def influence(self, *, refine: bool = True) -> dict[str, diagnostics.Influence]:
        """How far the posterior moves without each client.

        Args:
            refine: let the other clients settle without it, as a withdrawal does: the exact answer, at the price of
                a short run per client. False compares with the cavity, posterior / factor, at no price.
        """
        if self.server.held_by_clients:
            raise CavityError("the clients keep their factors to themselves, so the server cannot weigh them")
        self._needs_parameters()
        self._needs_factors()
        names = self.algorithm.model.parameter_names
        weighed = {}
        for name in self.parties:
            if refine:
                without = self.withdraw(name).posterior
            else:
                without = ledger.withdraw(self.algorithm, self.server, name).posterior
            weighed[name] = diagnostics.influence(self._reported(without), self.reported, names)
        return weighed

    def row_influence(self, client: str, rows: PyTree, *, seed: int = 0) -> list[diagnostics.Influence]:
        """How far one more row at a client would move the posterior, for each of `rows` by itself.

        The client solves again with the row added, and without it; the others' factors stay. Under a robust loss this
        stays small however far a row lies; under the likelihood it does not.

        Args:
            client: where the row is added.
            rows: in the form of the client's data.
            seed: of a stochastic solver.
        """
        self.needs_clients("weigh a row")
        self._needs_parameters()
        if isinstance(self.clients, ClientSource) or self.server.held_by_clients:
            raise CavityError("rows are weighed where the clients' data are in memory and the server holds the factors")
        if client not in (self.clients or {}):
            raise CavityError(f"there is no client {client!r}; the clients are {', '.join(self.server.names)}")
        model, data = self.algorithm.model, (self.clients or {})[client]
        added = prepare_client(model, client, rows)
        moved = diagnostics.posteriors_with_rows(self.algorithm, self.server, client, data, added, seed)
        moved = [self._reported(posterior) for posterior in moved]
        return [diagnostics.influence(posterior, moved[0], model.parameter_names) for posterior in moved[1:]]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit with its evidence, and without the clients' data, to one `.npz` file."""
        from cavity.evaluation import evidence

        path = Path(path)
        RunDirectory(path.parent).write_fit(path.name, execution.saved(evidence.with_evidence(self)), self.history)

    def to_arviz(self, num_draws: int = 4000, seed: int = 0) -> Any:
        """Posterior draws for ArviZ: `InferenceData` of 0.x, a `DataTree` of 1.x (needs the extra `cavity[arviz]`)."""
        if (named := self._named_draws(num_draws, seed)) is not None:
            return local_posterior.as_arviz(named)
        with jax.enable_x64(True):
            draws = self.reported.sample(jax.random.key(seed), (num_draws,))
            flat = jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)
        return local_posterior.as_arviz(dict(zip(self.algorithm.model.parameter_names, flat.T, strict=True)))

    def _rescheduled(self, server: ServerState) -> ServerState:
        return replace(server, schedule=self.schedule.init(server.names))

    def _needs_parameters(self) -> None:
        from cavity.distributions.hierarchical import Hierarchical

        if isinstance(self.posterior, Hierarchical):
            raise CavityError("the influence on a function is not one number; compare predictions with and without")

    def _needs_factors(self) -> None:
        if self.algorithm.server.entries is None:
            raise CavityError(
                f"{type(self.algorithm).__name__} keeps no factor per client that could be removed; run it again "
                "without the client"
            )

    def needs_clients(self, action: str) -> Mapping[str, Data] | ClientSource:
        if self.clients is None:
            raise CavityError(f"to {action}, load the fit with the clients' data: cavity.load(path, clients=...)")
        return self.clients
