"""What a study file says, as plain values: the fields have the names of its keys. No data, and nothing of one site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cavity.study.columns import Column, FixedScaling, Integer, Number, ScalingRule
from cavity.study.formula import Formula, parse_formula

MIN_ROWS = 10


@dataclass(frozen=True)
class Part:
    """A part of a method by its word in the file, with the one number that it may take: `{ beta = 0.5 }`."""

    word: str
    number: float | int | None = None

    def __str__(self) -> str:
        return self.word if self.number is None else f"{self.word} = {self.number:g}"


@dataclass(frozen=True)
class ModelChoice:
    """The model: one of the regressions by a formula, or a function of the user's own that returns one.

    Attributes:
        kind: the word for a regression; None for a function.
        formula: of the regression; a function's model gets the formula's x and y, or without one a dict of columns.
        noise_sd: of linear regression; None where it is unknown and estimated.
        function: as `module:function`, installed at every site.
        arguments: what it is called with.
    """

    kind: str | None = None
    formula: str | None = None
    noise_sd: float | None = None
    function: str | None = None
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class PriorChoice:
    """Normal priors around zero, of the coefficients of scaled columns where columns are scaled.

    Attributes:
        scale: the standard deviation for every slope.
        intercept_scale: that of intercepts.
        log_noise_scale: that of the log of the noise, where it is estimated.
        scales: that of single coefficients, by name.
    """

    scale: float
    intercept_scale: float
    log_noise_scale: float | None = None
    scales: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class AlgorithmChoice:
    """The method and its parts; those that a method does not have are None.

    Attributes:
        method: its word.
        family: of the posterior of a regression.
        damping: the server's.
        loss: of FedGVI.
        divergence: of FedGVI, at the clients.
        server_divergence: of FedGVI, at the server.
        step_size: of SFVI and SFVI-Avg.
        local_steps: of SFVI-Avg.
        total: how many units, or rows, all clients have together, for SFVI-Avg.
        factors: who keeps the factors of PVI and FedGVI, the "server" or the "clients".
    """

    method: str
    family: str | None = None
    damping: Part | None = None
    loss: Part | None = None
    divergence: Part | None = None
    server_divergence: Part | None = None
    step_size: float | None = None
    local_steps: int | None = None
    total: int | None = None
    factors: str | None = None

    @property
    def held_by_clients(self) -> bool:
        """Whether the server has the product of the factors only."""
        return self.factors == "clients"


@dataclass(frozen=True)
class RunChoice:
    """How long, in which order, and from which seed.

    Attributes:
        schedule: who works when.
        rounds: at the latest after so many; None as the method plans.
        tolerance: or when no client's data pull by more than this, in nats.
        seed: of all randomness.
    """

    schedule: Part
    rounds: int | None
    tolerance: float
    seed: int


@dataclass(frozen=True)
class Study:
    """All that the parties have agreed on. `cavity.study.read_study` makes one from a file.

    Attributes:
        name: for people.
        id: for programs; what a site keeps between runs is kept under it.
        clients: who takes part.
        min_rows: a client with fewer is refused.
        scaling: of numeric predictors that do not say otherwise.
        model: what is fitted.
        columns: what every client's file must have.
        prior: of a regression by formula; None for a user's own model, which has its own.
        algorithm: how.
        run: how long.
    """

    name: str
    id: str
    clients: tuple[str, ...]
    min_rows: int
    scaling: ScalingRule
    model: ModelChoice
    columns: tuple[Column, ...]
    prior: PriorChoice | None
    algorithm: AlgorithmChoice
    run: RunChoice

    @property
    def formula(self) -> Formula | None:
        """What the formula asks for, if there is one."""
        return None if self.model.formula is None else parse_formula(self.model.formula)

    @property
    def used_columns(self) -> tuple[Column, ...]:
        """Those that the model looks at: the outcome's, then those of predictors; all of them without a formula."""
        if (formula := self.formula) is None:
            return self.columns
        columns = {column.name: column for column in self.columns}
        return tuple(columns[name] for name in (formula.outcome, *formula.predictors))

    @property
    def scaling_rules(self) -> dict[str, FixedScaling | ScalingRule]:
        """How each numeric predictor is scaled, of those that are."""
        predictors = self.used_columns if self.formula is None else self.used_columns[1:]
        numeric = [column for column in predictors if isinstance(column, (Number, Integer))]
        default = ScalingRule.NONE if self.formula is None else self.scaling
        rules = {column.name: default if column.scaling is None else column.scaling for column in numeric}
        return {name: rule for name, rule in rules.items() if rule != ScalingRule.NONE}

    @property
    def federated_columns(self) -> tuple[str, ...]:
        """The columns whose sums every client sends once, before the first round."""
        return tuple(name for name, rule in self.scaling_rules.items() if rule == ScalingRule.FEDERATED)

    @property
    def hash(self) -> str:
        """The same for two files if and only if they mean the same."""
        from cavity.study.identity import digest

        return digest(self)
