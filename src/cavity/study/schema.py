"""What a study file says, as plain values: the fields have the names of its keys. No data, and nothing of one site."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
    """Normal priors around zero, of the coefficients of scaled columns and a scaled outcome where these are scaled.

    Attributes:
        scale: the standard deviation for every slope.
        intercept_scale: that of intercepts, which are the values at the centres of the columns.
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
        allow_models: the modules that `model.function` may be imported from here. It is this site's own word: no file
            of a study has it, and it is no part of what is agreed.
        max_total_rows: of all clients together, for the bound on posteriors that a client answers; None is 10,000,000.
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
    allow_models: tuple[str, ...] = field(default=(), compare=False)
    max_total_rows: int | None = None

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
        """How each numeric predictor is scaled, of those that are.

        The study's own rule leaves out a column inside of a function, and all columns where centred ones would make
        another model of the formula.
        """
        from cavity.study.encoding import is_reversible

        predictors = self.used_columns if self.formula is None else self.used_columns[1:]
        numeric = [column for column in predictors if isinstance(column, (Number, Integer))]
        default = ScalingRule.NONE if self.formula is None else self.scaling
        rules = {column.name: column.scaling for column in numeric}
        chosen = {name: rule for name, rule in rules.items() if rule not in (None, ScalingRule.NONE)}
        if default != ScalingRule.NONE and self.formula is not None and self.model.formula is not None:
            rest = [name for name, rule in rules.items() if rule is None and name not in self.formula.transformed]
            if is_reversible(self.model.formula, self.used_columns, (*chosen, *rest)):
                chosen |= dict.fromkeys(rest, default)
        return {name: rule for name in rules if (rule := chosen.get(name)) is not None}

    @property
    def outcome_rule(self) -> FixedScaling | ScalingRule:
        """How the outcome of linear regression is scaled; other outcomes are not."""
        if self.model.kind != "linear":
            return ScalingRule.NONE
        own = getattr(self.used_columns[0], "scaling", None)
        return self.scaling if own is None else own

    @property
    def federated_columns(self) -> tuple[str, ...]:
        """The columns whose sums every client sends before the first round: predictors, then the outcome."""
        predictors = [name for name, rule in self.scaling_rules.items() if rule == ScalingRule.FEDERATED]
        outcome = [self.used_columns[0].name] if self.outcome_rule == ScalingRule.FEDERATED else []
        return (*predictors, *outcome)

    @property
    def scales_design(self) -> bool:
        """Whether every client sends sums of the columns of the formula's matrix too, before the first round."""
        return self.model.kind is not None and self.scaling == ScalingRule.FEDERATED

    @property
    def design_names(self) -> tuple[str, ...]:
        """The columns of the formula's matrix."""
        from cavity.study.design import Design

        return () if self.model.formula is None else Design(self.model.formula, self.used_columns[1:]).names

    @property
    def agreed_centres(self) -> dict[str, float]:
        """The values that the sums of columns are around: the middle of a declared range, else 0."""
        return {column.name: _middle(column) for column in self.used_columns if column.name in self.federated_columns}

    @property
    def farthest(self) -> dict[str, float]:
        """How far a value may be from its agreed centre, for columns with a declared range."""
        return {
            column.name: max(abs(end - self.agreed_centres[column.name]) for end in column.range)
            for column in self.used_columns
            if column.name in self.federated_columns and isinstance(column, (Number, Integer)) and column.range
        }

    @property
    def hash(self) -> str:
        """The same for two files if and only if they mean the same."""
        from cavity.study.identity import digest

        return digest(self)


def _middle(column: Column) -> float:
    declared = column.range if isinstance(column, (Number, Integer)) else None
    if declared is None or not all(map(math.isfinite, declared)):
        return 0.0
    return 0.5 * declared[0] + 0.5 * declared[1]
