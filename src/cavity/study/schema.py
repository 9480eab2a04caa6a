"""What a study file says, as plain values: the fields have the names of its keys. No data, and nothing of one site."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cavity.study.columns import Column, FixedScaling, ScalingRule
from cavity.study.design import Design
from cavity.study.encoding import is_reversible
from cavity.study.families.family import Family
from cavity.study.formula import Formula, parse_formula
from cavity.study.group_design import GroupDesign
from cavity.study.part import Part
from cavity.study.priors import PriorChoice
from cavity.study.sections import Plain

MIN_ROWS = 10


@dataclass(frozen=True)
class ModelChoice:
    """The model: a regression by a formula, or the model that a function of the user's own returns.

    Attributes:
        family: of the outcome, with its settings; None for a function.
        formula: of the regression. A function's model gets the formula's x and y, or without one a dict of columns.
        function: as `module:function`, installed at every site.
        arguments: of the function.
        weights: the column with the weight of each row; None is 1.
    """

    family: Family | None = None
    formula: str | None = None
    function: str | None = None
    arguments: tuple[tuple[str, Plain], ...] = ()
    weights: str | None = None


@dataclass(frozen=True)
class AlgorithmChoice:
    """The method and its parts; those that a method does not have are None.

    Attributes:
        method: its name.
        covariance: the form of the Gaussian posterior of a regression, "full" or "diagonal".
        damping: the server's.
        loss: of FedGVI.
        divergence: of FedGVI, at the clients.
        server_divergence: of FedGVI, at the server.
        step_size: of SFVI and SFVI-Avg.
        local_steps: of SFVI-Avg.
        total: the number of units, or rows, of all clients together, for SFVI-Avg.
        factors: who keeps the factors of PVI and FedGVI, the "server" or the "clients".
    """

    method: str
    covariance: str | None = None
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
        """Whether the server keeps only the product of the factors."""
        return self.factors == "clients"


@dataclass(frozen=True)
class RunChoice:
    """When a run stops, the order of the clients, and the random seed.

    Attributes:
        schedule: which clients take part in each round.
        rounds: maximum number of rounds; None is the method's default.
        tolerance: convergence tolerance, in nats.
        seed: random seed.
    """

    schedule: Part
    rounds: int | None
    tolerance: float
    seed: int


@dataclass(frozen=True)
class Study:
    """Everything that the sites have agreed on. `cavity.study.read_study` makes one from a file.

    Attributes:
        name: for people.
        id: for programs; a site stores its state between runs under this name.
        clients: who takes part.
        min_rows: a client with fewer rows is refused.
        scaling: of numeric predictors, the outcome and the formula's matrix, unless a column has its own rule.
        model: what is fitted.
        columns: what every client's file must have.
        prior: of a regression by formula; None for a user's own model, which has its own prior.
        algorithm: the method.
        run: when it stops.
        allow_models: the modules that `model.function` may be imported from at this site. It is the site's own setting:
            no study file has it, and it is not part of what is agreed.
        max_total_rows: of all clients together, for the bound on the posteriors that a client accepts; None is
            10,000,000.
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
        """The parsed formula, if there is one."""
        return None if self.model.formula is None else parse_formula(self.model.formula)

    @property
    def outcome_columns(self) -> tuple[Column, ...]:
        """The columns on the left of the formula; none without a formula."""
        return () if self.formula is None else self.used_columns[: len(self.formula.outcomes)]

    @property
    def used_columns(self) -> tuple[Column, ...]:
        """Those that the model uses: the formula's and that of weights; all columns without a formula."""
        used = self.formula_columns
        if self.model.weights in (None, *(column.name for column in used)):
            return used
        return (*used, *(column for column in self.columns if column.name == self.model.weights))

    @property
    def formula_columns(self) -> tuple[Column, ...]:
        """Those of the formula: the outcome's, then those of predictors; all columns without a formula."""
        if (formula := self.formula) is None:
            return self.columns
        columns = {column.name: column for column in self.columns}
        return tuple(columns[name] for name in formula.columns)

    @property
    def summed_columns(self) -> tuple[str, ...]:
        """What every client sends sums of first: scaled columns, and whether it has each level of the outcome."""
        return (*self.federated_columns, *self.needed_levels)

    @property
    def needed_levels(self) -> tuple[str, ...]:
        """Levels of the outcome that must occur at some client, as `pain[severe]`."""
        if self.model.family is None or not self.model.family.needs_all_levels:
            return ()
        return tuple(f"{column.name}[{level}]" for column in self.outcome_columns for level in column.level_names)

    @property
    def scaling_rules(self) -> dict[str, FixedScaling | ScalingRule]:
        """How each numeric predictor is scaled, of those that are.

        The study's own rule leaves out a column inside a function, and all columns if centring them would change the
        model of the formula.
        """
        numeric = [column for column in self._predictor_columns if column.is_numeric]
        default = ScalingRule.NONE if self.formula is None else self.scaling
        rules = {column.name: column.scaling_rule for column in numeric}
        chosen = {name: rule for name, rule in rules.items() if rule is not None and rule != ScalingRule.NONE}
        if default != ScalingRule.NONE and self.formula is not None and self.model.formula is not None:
            rest = [name for name, rule in rules.items() if rule is None and name not in self.formula.transformed]
            if is_reversible(self.model.formula, self.formula_columns, (*chosen, *rest)):
                chosen |= dict.fromkeys(rest, default)
        return {name: chosen[name] for name in rules if name in chosen}

    @property
    def outcome_rule(self) -> FixedScaling | ScalingRule:
        """How the outcome is scaled, for families that scale it."""
        family, formula = self.model.family, self.formula
        if family is not None and family.divides_outcome and formula is not None and formula.intercept:
            return self.scaling
        if family is None or not family.scales_outcome:
            return ScalingRule.NONE
        own = self.used_columns[0].scaling_rule
        return self.scaling if own is None else own

    @property
    def scaled_outcome(self) -> str | None:
        """The name of the outcome's column if it is scaled."""
        return None if self.outcome_rule == ScalingRule.NONE else self.used_columns[0].name

    @property
    def federated_columns(self) -> tuple[str, ...]:
        """The columns whose sums every client sends before the first round: predictors, then the outcome."""
        predictors = [name for name, rule in self.scaling_rules.items() if rule == ScalingRule.FEDERATED]
        outcome = [self.used_columns[0].name] if self.outcome_rule == ScalingRule.FEDERATED else []
        return (*predictors, *outcome)

    @property
    def scales_design(self) -> bool:
        """Whether every client also sends sums of the columns of the formula's matrix before the first round."""
        return self.model.family is not None and self.scaling == ScalingRule.FEDERATED

    @property
    def design(self) -> Design:
        """The formula's matrix. Only for studies with a formula."""
        assert self.model.formula is not None
        return Design(self.model.formula, self._predictor_columns)

    @property
    def group_design(self) -> GroupDesign:
        """The effects that vary between groups. Only for studies with a formula."""
        assert self.model.formula is not None
        return GroupDesign(self.model.formula, self.formula_columns[len(self.outcome_columns) :])

    @property
    def _predictor_columns(self) -> tuple[Column, ...]:
        columns = self.formula_columns[len(self.outcome_columns) :]
        return tuple(c for c in columns if self.formula is None or c.name in self.formula.places)

    @property
    def design_names(self) -> tuple[str, ...]:
        """The columns of the formula's matrix, and the slopes that vary between groups; none without a formula."""
        return () if self.model.formula is None else (*self.design.names, *self.group_design.slopes)

    @property
    def agreed_centres(self) -> dict[str, float]:
        """The values around which columns are summed: the middle of a declared range, otherwise 0."""
        return {column.name: _middle(column) for column in self.used_columns if column.name in self.federated_columns}

    @property
    def farthest(self) -> dict[str, float]:
        """How far a value may be from its agreed centre, for columns with a declared range.

        The outcome of a formula with an offset has none: what is scaled is the outcome without its offset.
        """
        offset = self.formula is not None and bool(self.formula.offsets)
        skipped = {column.name for column in self.outcome_columns} if offset else set()
        return {
            column.name: max(abs(end - self.agreed_centres[column.name]) for end in column.limits)
            for column in self.used_columns
            if column.name in self.federated_columns and column.limits is not None and column.name not in skipped
        }

    @property
    def hash(self) -> str:
        """The same for two files if and only if they mean the same."""
        from cavity.study.identity import digest

        return digest(self)


def _middle(column: Column) -> float:
    if column.limits is None or not all(map(math.isfinite, column.limits)):
        return 0.0
    return 0.5 * column.limits[0] + 0.5 * column.limits[1]
