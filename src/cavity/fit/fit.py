"""The result of a run: a small record. What it offers is computed by functions in this package, which take a `Fit`."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxtyping import PyTree

from cavity.core import Algorithm, ClientSource, Data, Hyperparameter, Schedule
from cavity.core.intervals import DEFAULT_LEVEL, check_level
from cavity.core.messages import ClientState, ServerState
from cavity.core.progress import Watcher
from cavity.errors import CavityError
from cavity.training import Observer, Record

if TYPE_CHECKING:
    from cavity.evaluation.diagnostics import Influence
    from cavity.evaluation.psis import ImportanceWeights
    from cavity.evaluation.verdict import Verdict
    from cavity.fit.execution import Metrics
    from cavity.fit.heterogeneity import Heterogeneity
    from cavity.fit.local_posterior import LocalPosterior
    from cavity.fit.population import Population
    from cavity.fit.prediction import AnyPrediction
    from cavity.fit.presentation import Presentation
    from cavity.fit.summary import Coefficients, Summary


@dataclass(frozen=True, repr=False)
class Fit:
    """A posterior, and the run that led to it. `refine`, `withdraw` and `join` return a new fit.

    Attributes:
        algorithm: the algorithm, with its model.
        server: the ledger: prior, entries, posterior, bookkeeping.
        history: one record per round.
        stopped: why the run stopped: "tolerance" or "rounds".
        schedule: which clients worked when.
        clients: the clients' prepared data or their source; None for a fit that was loaded without them.
        client_states: what the clients keep between rounds.
        labels: the names of each client's units, for models with local latents.
        initial_rounds: rounds of the initialisation, which came before those of the history.
        closing: the server's version and the evidence at it, where it was computed while the clients were connected.
    """

    algorithm: Algorithm
    server: ServerState
    history: list[Record]
    stopped: str
    schedule: Schedule
    clients: Mapping[str, Data] | ClientSource | None = None
    client_states: Mapping[str, ClientState] | None = None
    labels: Mapping[str, tuple[Hashable, ...]] = field(default_factory=dict)
    initial_rounds: int = 0
    closing: tuple[int, float] | None = None

    def __repr__(self) -> str:
        from cavity.fit.presentation import overview_of

        return overview_of(self)

    @property
    def posterior(self) -> Any:
        """The posterior in the model's own units (see `units`), with float64 numpy leaves.

        Its type is that of the algorithm's family: a Gaussian for most, a point for FedAvg, a distribution of a
        function for Gaussian processes. A regression by a formula computes with scaled columns; `coefficients` and
        `reported` are in the units of the data.
        """
        return self.server.posterior

    @property
    def reported(self) -> Any:
        """The posterior of what `summary` shows: in the units of the data."""
        return self._presentation.reported(self.posterior)

    @property
    def coefficients(self) -> Coefficients:
        """Means, standard deviations and covariance of all parameters, by name, in the units of the data."""
        return self._presentation.coefficients()

    @property
    def prior_scales(self) -> dict[str, float]:
        """The prior standard deviation of every parameter."""
        return self._presentation.prior_scales()

    @property
    def units(self) -> str:
        """The units of the summary, and those of `posterior` where they differ."""
        return self._presentation.units

    @cached_property
    def _presentation(self) -> Presentation:
        from cavity.fit.presentation import presentation_of

        return presentation_of(self)

    @property
    def client_names(self) -> list[str]:
        """The clients, without the server's own entry for a prior outside the family."""
        from cavity.fit import method

        return [name for name in self.server.names if name not in method.server_entries(self.server)]

    @property
    def converged(self) -> bool:
        """Whether the run has converged: the gap of every client is below the tolerance, or the algorithm says so.

        SFVI and SFVI-Avg look at the trend of the bound and of the posterior. A posterior that cannot be right, at the
        limit of floating point or wider than the prior, has not converged, whatever stopped the run.
        """
        from cavity.fit import method

        settled = method.has_settled(self.algorithm, self.server)
        return (self.stopped == "tolerance" if settled is None else settled) and not self.doubts

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why the posterior cannot be right, each with a remedy; empty where there are none."""
        from cavity.evaluation import plausibility

        return plausibility.doubts(self) if self.history else ()

    @cached_property
    def log_evidence(self) -> float:
        """A lower bound of log p(y) in nats, by which models of the same rows are compared (`cavity.compare`).

        It is the bound at this posterior, whatever the schedule and however many rounds were run. It equals log p(y),
        with the constants of the likelihood, where the family contains the exact posterior. Elsewhere
        `importance_weights().log_evidence` is closer. Each client computes one expectation over its rows.
        """
        from cavity.evaluation import evidence

        return evidence.log_evidence(self)

    @cached_property
    def verdict(self) -> Verdict:
        """How good the approximation is, with reasons, errors of means and sds, and corrected values.

        "exact for practical purposes"; "good" (errors below 5 %); "rough" (use the corrected values); "do not use"; or
        "not assessed", with the reason. `cavity.evaluation.verdict` has the rules and their limits.
        """
        from cavity.evaluation import verdict

        return verdict.verdict_of(self)

    def summary(self, level: float = DEFAULT_LEVEL) -> Summary:
        """Mean, standard deviation and central interval of every parameter, by name.

        Args:
            level: the probability that each interval has.

        Returns:
            The summary; `print` shows a table, a notebook shows it as HTML. Where this process has the clients' data,
            the table says how good the approximation is (`verdict`).
        """
        from cavity.evaluation import integration, verdict
        from cavity.fit.presentation import remarks_on

        summary = self._presentation.summary(check_level(level), remarks_on(self))
        return replace(summary, checks=lambda: (verdict.remark(self), *filter(None, [integration.remark(self)])))

    def predict(
        self,
        x: PyTree,
        *,
        level: float = DEFAULT_LEVEL,
        num_draws: int | None = None,
        seed: int = 0,
        point: bool = False,
    ) -> AnyPrediction:
        """The expected outcome at new rows, with its posterior standard deviation and central interval.

        Args:
            x: features, as the clients have them (no intercept). With local latents, rows of units that no client has;
                `fit.local(name).predict(x)` is for the units of a client.
            level: the probability that each interval has.
            num_draws: average over this many posterior draws; None uses the closed form where there is one
                (for logistic regression a quadrature).
            seed: random seed of the draws.
            point: predict at the posterior mean alone, as methods without uncertainty do.

        Returns:
            A `Prediction`; of a Gaussian process, a `FunctionPrediction` of the function and of outcomes.
        """
        return self._presentation.predict(x, num_draws, seed, point, check_level(level))

    def local(self, name: str) -> LocalPosterior:
        """A client's posterior of its own local latents, where this process has its data.

        Args:
            name: the client.
        """
        from cavity.fit import local_posterior

        return local_posterior.local_posterior(self, name)

    def importance_weights(self, num_draws: int = 2000, seed: int = 0) -> ImportanceWeights:
        """Posterior draws with their importance weights, prior x likelihood / posterior.

        All clients get the same draws, and each sends one number per draw: the log likelihood of its rows.

        Args:
            num_draws: number of posterior draws.
            seed: random seed of the draws.

        Returns:
            The draws and their weights.
        """
        from cavity.evaluation import psis

        return psis.weights_of(self, num_draws, seed)

    def refine(
        self,
        rounds: int = 100,
        tolerance: float = 1e-6,
        *,
        observers: Sequence[Observer] = (),
        metrics: Metrics | None = None,
        rounds_per_block: int | None = None,
        chunk: int | None = None,
        progress: bool | Watcher = False,
    ) -> Fit:
        """Run further rounds.

        Args:
            rounds: maximum number of further rounds; at least one is run.
            tolerance: as in `cavity.run`.
            observers: as in `cavity.run`.
            metrics: as in `cavity.run`.
            rounds_per_block: as in `cavity.run`.
            chunk: as in `cavity.run`.
            progress: as in `cavity.run`.

        Returns:
            The refined fit.
        """
        from cavity.fit import changes
        from cavity.fit.execution import Options

        options = Options(metrics, observers, rounds_per_block=rounds_per_block, chunk=chunk, progress=progress)
        return changes.refine(self, rounds, tolerance, options)

    def learn(
        self, *hyperparameters: Hyperparameter, steps: int = 100, rounds: int = 10, tolerance: float = 1e-5
    ) -> Fit:
        """Move hyperparameters to the maximum of the free energy, in turn with rounds that refine the posterior.

        After a step the posterior is the new prior times the same factors. The learned values are in
        `fit.algorithm.model`; `fit.prior_scales` are those of the prior.

        Args:
            *hyperparameters: such as `PriorScale()` and `NoiseSd()`, of `cavity.hyperparameters`.
            steps: maximum number of steps.
            rounds: maximum number of rounds after each step.
            tolerance: stop when the free energy changes by less than this, in nats, if a value grows by a factor of e.

        Returns:
            The fit with the learned hyperparameters.

        Example: `fit.learn(cavity.hyperparameters.PriorScale(["dose", "age"], separate=True)).log_evidence`
        """
        from cavity.hyperparameters import learning

        return learning.learn(self, hyperparameters, steps, rounds, tolerance)

    def warm_start(self, algorithm: Algorithm, *, precision_per_row: float | None = None) -> Fit:
        """Start another algorithm of the same model from this fit.

        SFVI-Avg first, then SFVI; or FedAvg first, then FedEP, FedSEP or FedPA. FedAvg's point becomes
        N(point, 1 / (c n_k)) as the factor of a client with n_k rows, so that its rows are not counted again.

        Args:
            algorithm: the other algorithm.
            precision_per_row: c, after FedAvg; None takes that of the scaled identity, where the other algorithm has
                one.

        Returns:
            A fit of the other algorithm, before its first round.
        """
        from cavity.fit import warm_start

        return warm_start.warm_started(self, algorithm, precision_per_row)

    def withdraw(self, name: str, rounds: int = 100, tolerance: float = 1e-6) -> Fit:
        """Remove a client: drop its factor, and refine the others to convergence without it.

        Args:
            name: the client.
            rounds: maximum number of rounds.
            tolerance: as in `cavity.run`.

        Returns:
            The fit without the client.
        """
        from cavity.fit import changes

        return changes.withdraw(self, name, rounds, tolerance)

    def join(self, name: str, data: PyTree, rounds: int = 100, tolerance: float = 1e-6) -> Fit:
        """Add a client, and refine to convergence with it.

        Args:
            name: the new client.
            data: its data, as for `cavity.run`.
            rounds: maximum number of rounds.
            tolerance: as in `cavity.run`.

        Returns:
            The fit with the client.
        """
        from cavity.fit import changes

        return changes.join(self, name, data, rounds, tolerance)

    def influence(self, *, refine: bool = True) -> dict[str, Influence]:
        """How far the posterior moves without each client.

        Args:
            refine: refine the others without it, as a withdrawal does. False takes the cavity, posterior / factor.

        """
        from cavity.fit import influence

        return influence.client_influence(self, refine=refine)

    def heterogeneity(self, alpha: float = 0.01) -> Heterogeneity:
        """Compare the shift of each coefficient when a client is left out with chance; `print` shows a table.

        Args:
            alpha: the share of clients that are flagged if all agree.
        """
        from cavity.fit.heterogeneity import heterogeneity

        return heterogeneity(self, alpha)

    def row_influence(self, name: str, rows: PyTree, *, seed: int = 0) -> list[Influence]:
        """How far one more row at a client would move the posterior, for each of `rows` by itself.

        The client solves again with the row added, and without it; the factors of the others stay. Under a robust loss
        this stays small however far a row lies; under the likelihood it does not.

        Args:
            name: the client where the row is added.
            rows: in the form of the client's data.
            seed: random seed of a stochastic solver.

        Returns:
            The influence of each row.
        """
        from cavity.fit import influence

        return influence.row_influence(self, name, rows, seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit with its evidence, and without the clients' data, to one `.npz` file.

        Args:
            path: the file; `cavity.load` reads it.
        """
        from cavity.fit import files

        files.write(self, path)

    def to_arviz(self, num_draws: int = 4000, seed: int = 0) -> Any:
        """Posterior draws for ArviZ (needs the extra `cavity[arviz]`).

        Args:
            num_draws: number of draws.
            seed: random seed of the draws.

        Returns:
            `InferenceData` of ArviZ 0.x, a `DataTree` of ArviZ 1.x.
        """
        from cavity.fit.local_posterior import as_arviz

        return as_arviz(self._presentation.draws(num_draws, seed))

    def population(self, action: str) -> Population:
        """The clients with their data.

        Args:
            action: what they are needed for, for the error message.

        Returns:
            The clients, in memory or streamed.

        Raises:
            CavityError: if the fit was loaded without the clients' data.
        """
        from cavity.fit.population import population_of

        if self.clients is None:
            raise CavityError(f"to {action}, load the fit with the clients' data: cavity.load(path, clients=...)")
        return population_of(self.algorithm.model, self.clients)
