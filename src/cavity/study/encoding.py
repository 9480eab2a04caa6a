"""From a table to the numbers of a regression by formula, and from its coefficients back to the units of the table."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache

import equinox as eqx
import numpy as np
from jaxtyping import Float

from cavity.errors import DataError, StudyError
from cavity.models.mixed.group_rows import GroupedRows, GroupEncoding
from cavity.study.columns import Column
from cavity.study.design import Design, template
from cavity.study.findings import Finding, Severity, listed, refuse
from cavity.study.formula import Formula, parse_formula
from cavity.study.formula.expressions import compute, write
from cavity.study.group_design import GroupDesign
from cavity.study.nesting import nesting_problem
from cavity.study.rows import Rows, read_rows
from cavity.study.scaling import ScaledColumn, Scaling, Sums, sums_of
from cavity.study.table import as_table

UNITS = (1.0, 10.0, 100.0, 1e4, 0.1, 0.01, -1.0)
ROUNDING = 1e-11  # relative: smaller numbers in a solution of linear equations are zero


class FormulaEncoding(GroupEncoding):
    """A formula over agreed columns.

    Attributes:
        formula: such as `outcome ~ rx * age`.
        columns: what is agreed about its columns, those of the outcome first.
        scaling: centre and scale of what is scaled.
    """

    formula: str = eqx.field(static=True)
    columns: tuple[Column, ...] = eqx.field(static=True)
    scaling: Scaling = eqx.field(static=True, default=Scaling())

    def __check_init__(self) -> None:
        self.check()

    def check(self) -> None:
        for column in self.columns:
            column.check()
        names = [column.name for column in self.columns]
        expected, num_outcomes = list(self.parsed.columns), len(self.parsed.outcomes)
        if names[:num_outcomes] != expected[:num_outcomes] or sorted(names) != sorted(expected):
            raise StudyError(f"the formula uses the columns {', '.join(expected)}, but it has {', '.join(names)}")
        for column in self.columns:
            if column.name in self.parsed.offset_columns and not column.is_numeric:
                raise StudyError(f"an offset is computed from numbers, and column '{column.name}' has none")
        _check_scaling(self.scaling)
        _ = self.matrix_names  # raises if there are too many, or two are the same
        both = sorted(set(self.parsed.transformed) & set(self.scaling.names))
        if both:
            raise StudyError(
                f"the column '{both[0]}' is scaled, and the formula takes a function of it; set its scaling to "
                '"none", or add the result to the data as a column'
            )

    @property
    def parsed(self) -> Formula:
        """The parsed formula."""
        return parse_formula(self.formula)

    @property
    def outcome(self) -> tuple[Column, ...]:
        """The columns on the left of the formula."""
        return self.columns[: len(self.parsed.outcomes)]

    @property
    def design(self) -> Design:
        """The matrix of the predictors."""
        columns = self.columns[len(self.parsed.outcomes) :]
        return Design(self.formula, tuple(column for column in columns if column.name in self.parsed.places))

    @property
    def group_design(self) -> GroupDesign:
        """The matrix of the effects that vary between groups."""
        return GroupDesign(self.formula, self.columns[len(self.parsed.outcomes) :])

    @property
    def matrix_names(self) -> tuple[str, ...]:
        """The columns of both matrices that are scaled: those of the predictors, then slopes that vary (`age|ward`)."""
        names = (*self.design.names, *self.group_design.slopes)
        if twice := [name for name in self.group_design.slopes if names.count(name) > 1]:
            raise StudyError(f"a coefficient and an effect are both called '{twice[0]}'; rename a column")
        return names

    @property
    def effect_units(self) -> tuple[float, ...]:
        """What the columns of the group terms are divided by: their standard deviations, if these are known."""
        design, group = self.scaling.design, self.group_design
        known = {column.name: column.scale for column in design[len(self.design.names) :]}
        if not design:
            plain = {column.name: column.scale for column in self.scaling.columns}
            known = {f"{name}|{e.term.group}": plain[name] for e in group.effects for name in e.names if name in plain}
        return tuple(
            known.get(name, 1.0) if slope else 1.0 for name, slope in zip(group.names, group.is_slope, strict=True)
        )

    def read(self, table: object, *, with_outcome: bool = True, may_drop: bool = True) -> Rows:
        """The rows of a table, with everything that is wrong with them.

        Args:
            table: a `Table`, a data frame or a dict of columns.
            with_outcome: whether the outcome is read too.
            may_drop: whether rows with missing values may be dropped.
        """
        columns = self.columns if with_outcome else self.columns[len(self.parsed.outcomes) :]
        return read_rows(columns, as_table(table), may_drop=may_drop)

    def encoded(self, rows: Rows, counted_as: str) -> tuple[np.ndarray, np.ndarray]:
        """Features and outcomes of rows that were read. Raises DataError.

        Args:
            rows: of a client.
            counted_as: what the numbers of the rows count, for messages.

        Returns:
            x [n, p] and y [n], or y [n, k] for an outcome of k columns.
        """
        refuse(rows.findings)
        x, findings = self.matrix(rows, counted_as)
        refuse(findings)
        return x, self._outcomes(rows, counted_as)

    def _outcomes(self, rows: Rows, counted_as: str) -> np.ndarray:
        """The outcomes that the model computes with: [n], or [n, k] for an outcome of k columns. Raises DataError.

        An offset is subtracted from a scaled outcome; from others it cannot be, and it is one more column.
        """
        columns = [np.asarray(rows.values[column.name], float) for column in self.outcome]
        offset = self.offset_values(rows, counted_as)
        if offset is not None and not self.adds_offset:
            columns[0] = columns[0] - offset
        columns[0] = self.scaling.apply_to_outcome(columns[0])
        if offset is not None and self.adds_offset:
            columns.append(offset)
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)

    @property
    def has_offset(self) -> bool:
        return bool(self.parsed.offsets)

    @property
    def adds_offset(self) -> bool:
        """Whether the outcomes have the offset as their last column, to be added to the predictor."""
        return self.has_offset and (self.scaling.outcome is None or self.scaling.log_outcome)

    @property
    def has_log_link(self) -> bool:
        return self.scaling.log_outcome

    def offset_values(self, rows: Rows, counted_as: str) -> Float[np.ndarray, " n"] | None:
        """The sum of the offsets of rows that were read, in the units of the data. Raises DataError."""
        return offset_values(self.parsed, rows, counted_as)

    def offset(self, table: object) -> Float[np.ndarray, " n"] | None:
        table = as_table(table)
        rows = self.read(table, with_outcome=False, may_drop=False)
        refuse(rows.findings)
        return self.offset_values(rows, table.counted_as)

    def matrix(self, rows: Rows, counted_as: str) -> tuple[np.ndarray, tuple[Finding, ...]]:
        """X of rows that were read without errors, and findings where it is not finite."""
        x = self.scaling.apply_to_design(self.design.matrix(self.scaling.apply(rows.values), len(rows)))
        return x, self._outside(rows, self.parsed.places, counted_as) or _not_finite(
            self.design.names, x, rows, counted_as
        )

    def _outside(self, rows: Rows, names: Collection[str], counted_as: str) -> tuple[Finding, ...]:
        """Findings about values of these columns that are outside the range of a spline."""
        findings = []
        knots = {name: own for name, own in self.parsed.spline_knots.items() if name in names}
        for name, (low, *_, high) in knots.items():
            outside = (rows.values[name] < low) | (rows.values[name] > high)
            if outside.any():
                bad = rows.numbers[outside].tolist()
                shown = [f"{value:g}" for value in rows.values[name][outside][:10]]
                message = (
                    f"outside the range {low:g} to {high:g} of its spline: {listed(bad, counted_as, shown)}; agree on "
                    "a wider range in the formula, or drop these rows"
                )
                findings.append(Finding(Severity.ERROR, message, name, tuple(bad[:10]), len(bad)))
        return tuple(findings)

    def matrix_sums(self, rows: Rows, counted_as: str, weight: Float[np.ndarray, " n"] | None = None) -> Sums:
        """The sums of the columns of both matrices. Raises DataError.

        Args:
            rows: of a client.
            counted_as: what the numbers of the rows count, for messages.
            weight: of each row; None is 1.
        """
        refuse(rows.findings)
        (x, in_x), (z, in_z) = self.matrix(rows, counted_as), self.group_matrix(rows, counted_as)
        refuse((*in_x, *in_z))
        slopes = z[:, np.array(self.group_design.is_slope, bool)]
        columns = dict(zip(self.matrix_names, (*x.T, *slopes.T), strict=True))
        return sums_of(self.matrix_names, columns, len(rows), weight=weight)

    def group_matrix(self, rows: Rows, counted_as: str) -> tuple[np.ndarray, tuple[Finding, ...]]:
        """Z of rows that were read without errors, in the units of the data, and findings where it is not finite."""
        z = self.group_design.matrix(rows.values, len(rows))
        only_here = set(self.parsed.group_predictors) - set(self.parsed.places)
        return z, self._outside(rows, only_here, counted_as) or _not_finite(
            self.group_design.names, z, rows, counted_as
        )

    def grouped(self, rows: Rows, counted_as: str, *, with_outcome: bool = True) -> GroupedRows:
        """The rows of a client with the columns and names of their groups. Raises DataError.

        Args:
            rows: that were read.
            counted_as: what the numbers of the rows count, for messages.
            with_outcome: whether they have outcomes.
        """
        refuse(rows.findings)
        (x, in_x), (z, in_z) = self.matrix(rows, counted_as), self.group_matrix(rows, counted_as)
        refuse((*in_x, *in_z))
        labels, groups = self.group_design.labels(rows.values), self.group_design.groups
        if (problem := nesting_problem([labels.get(group) for group in groups], groups)) is not None:
            raise DataError(problem)
        y = self._outcomes(rows, counted_as) if with_outcome else None
        offset = None if with_outcome else self.offset_values(rows, counted_as)
        outer, inner = (None if labels.get(group) is None else tuple(labels[group]) for group in (*groups, "")[:2])
        return GroupedRows(x, y, z / np.asarray(self.effect_units), outer, inner, offset)

    def grouped_rows(self, table: object, *, with_outcome: bool = True) -> GroupedRows:
        table = as_table(table)
        rows = self.read(table, with_outcome=with_outcome, may_drop=with_outcome)
        return self.grouped(rows, table.counted_as, with_outcome=with_outcome)

    def rows(self, table: object) -> tuple[np.ndarray, np.ndarray]:
        table = as_table(table)
        return self.encoded(self.read(table), table.counted_as)

    def features(self, table: object) -> np.ndarray:
        table = as_table(table)
        rows = self.read(table, with_outcome=False, may_drop=False)
        refuse(rows.findings)
        x, findings = self.matrix(rows, table.counted_as)
        refuse(findings)
        return x

    def to_computed(self) -> Float[np.ndarray, "w w"] | None:
        solution, design = _to_scaled(self), self.scaling.design[: len(self.design.names)]
        if not design:
            return solution
        return _standardised(self) if solution is None else _standardised(self) @ solution

    @property
    def is_reversible(self) -> bool:
        """Whether coefficients can be reported in the units of the data."""
        return not self.scaling.columns or _to_scaled(self) is not None

    @property
    def outcome_units(self) -> tuple[float, float]:
        outcome = self.scaling.outcome
        return (0.0, 1.0) if outcome is None else (outcome.centre, outcome.scale)

    @property
    def remarks(self) -> tuple[str, ...]:
        scaling = self.scaling
        if not (scaling.columns or scaling.design or scaling.outcome):
            return ("coefficients are per unit of the data, and so is the prior",)
        if self.is_reversible:
            what = " and a scaled outcome" if scaling.outcome else ""
            return (f"coefficients are per unit of the data; the prior and fit.posterior are of scaled columns{what}",)
        scaled = "; ".join(f"{c.name} is ({c.name} - {c.centre:.6g}) / {c.scale:.6g}" for c in self.scaling.columns)
        return (
            f"coefficients are of scaled columns, because this formula cannot be reported in other units: {scaled}",
        )


def offset_values(formula: Formula, rows: Rows, counted_as: str) -> Float[np.ndarray, " n"] | None:
    """The sum of a formula's offsets, in the units of the data; None without one. Raises DataError.

    Args:
        formula: with the offsets.
        rows: of a client.
        counted_as: what the numbers of the rows count, for messages.
    """
    if not formula.offsets:
        return None
    with np.errstate(all="ignore"):
        parts = [np.broadcast_to(compute(node, rows.values), len(rows)) for node in formula.offsets]
    names = [f"offset({write(node)})" for node in formula.offsets]
    refuse(_not_finite(names, np.stack(parts, axis=1), rows, counted_as))
    return np.sum(parts, axis=0)


def _not_finite(names: Sequence[str], matrix: np.ndarray, rows: Rows, counted_as: str) -> tuple[Finding, ...]:
    findings = []
    for name, column in zip(names, matrix.T, strict=True):
        if not (finite := np.isfinite(column)).all():
            bad = rows.numbers[~finite].tolist()
            message = f"{name} is not a finite number in {listed(bad, counted_as)}; agree on a range for its columns"
            findings.append(Finding(Severity.ERROR, message, None, tuple(bad[:10]), len(bad)))
    return tuple(findings)


def _check_scaling(scaling: Scaling) -> None:
    for column in scaling.all_columns:
        if not math.isfinite(column.centre) or not 0 < column.scale < math.inf:
            raise StudyError("a column is scaled by a finite centre and a positive scale")


@lru_cache(maxsize=64)
def _to_scaled(encoding: FormulaEncoding) -> np.ndarray | None:
    """B with X = Z B, X being the matrix of the raw columns and Z that of the scaled ones, both with their ones.

    Then X reported = Z computed requires computed = B reported. B is solved for on random rows, so it also holds for
    interactions and powers. If X is not spanned by Z (a centred column without an intercept), there is no B.
    """
    if not encoding.scaling.columns:
        return None
    design = encoding.design
    knots = encoding.parsed.spline_knots
    drawn = template(design.columns, 20 * (len(design.names) + 1), knots)
    num_rows = len(next(iter(drawn.values())))
    ones = np.ones((num_rows, int(design.intercept)))
    for unit in UNITS:  # of columns that are not scaled: a logarithm may need large or small values
        free = {name: column for name, column in drawn.items() if column.dtype.kind == "f" and name not in knots}
        numeric = {name: unit * column for name, column in free.items()}
        around_zero = {name: 3.0 * (drawn[name] - 1.5) for name in encoding.scaling.names}  # as scaled columns are
        scaled = drawn | numeric | around_zero
        z = np.hstack([ones, design.matrix(scaled, num_rows)])
        x = np.hstack([ones, design.matrix(encoding.scaling.undo(scaled), num_rows)])
        if np.isfinite(z).all() and np.isfinite(x).all():
            break
    else:
        return None
    solution, _, rank, _ = np.linalg.lstsq(z, x)
    size = np.abs(x).max(axis=0)
    if rank < z.shape[1] or (np.abs(x - z @ solution) > 1e-8 * size).any():
        return None
    return np.where(np.abs(solution) < ROUNDING * size, 0.0, solution)


def _standardised(encoding: FormulaEncoding) -> np.ndarray:
    """T with Z = S T, where S is Z with its columns scaled, each with its ones: z = m + s z'."""
    design = encoding.scaling.design[: len(encoding.design.names)]
    matrix = np.diag([1.0] * encoding.design.intercept + [column.scale for column in design])
    if encoding.design.intercept:
        matrix[0, 1:] = [column.centre for column in design]
    return matrix


def is_reversible(formula: str, columns: tuple[Column, ...], names: Sequence[str]) -> bool:
    """Whether coefficients can be reported in the units of the data if these columns are centred and scaled.

    If not (an interaction without its main effects), centring the columns would change the model.

    Args:
        formula: of the model.
        columns: all its columns, those of the outcome first.
        names: of the columns to be scaled.
    """
    anything = Scaling(tuple(ScaledColumn(name, 0.7, 1.3) for name in names))
    return FormulaEncoding(formula, columns, anything).is_reversible
