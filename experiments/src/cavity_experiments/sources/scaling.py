"""Inputs and targets in units of the training rows' spread, and back."""

from dataclasses import dataclass

import numpy as np

from cavity_experiments.sources.reading import Table

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Between raw units and those in which the training rows have mean 0 and variance 1 (divisor n).

    Attributes:
        x_mean: of each raw input [p].
        x_sd: of each raw input [p]; 0 where it is constant.
        y_mean: of the raw targets.
        y_sd: of the raw targets.
    """

    x_mean: np.ndarray
    x_sd: np.ndarray
    y_mean: float
    y_sd: float

    def inputs(self, raw: np.ndarray) -> np.ndarray:
        """Raw inputs [..., p] in standard units. An input that is constant in the training rows is 0 everywhere."""
        varies = self.x_sd > 0
        return np.where(varies, (raw - self.x_mean) / np.where(varies, self.x_sd, 1.0), 0.0)

    def raw_inputs(self, standard: np.ndarray) -> np.ndarray:
        """Standardised inputs [..., p] in raw units; deviations are times `x_sd`. A constant input is itself."""
        return self.x_mean + self.x_sd * standard

    def targets(self, raw: np.ndarray) -> np.ndarray:
        """Raw targets in standard units."""
        return (raw - self.y_mean) / self.y_sd

    def raw_targets(self, standard: np.ndarray | float) -> np.ndarray:
        """Standardised targets, or means or quantiles of them, in raw units; errors (RMSE) are times `y_sd`."""
        return np.array(self.y_mean + self.y_sd * standard)

    def raw_log_likelihood(self, standard: np.ndarray | float) -> np.ndarray:
        """Log densities (nats per row, or their mean) of standardised targets z as those of raw ones y.

        As z = (y - y_mean) / y_sd, log p(y) = log p(z) - log y_sd.
        """
        return np.array(standard - np.log(self.y_sd))


def standardised(table: Table) -> tuple[Rows, Rows, Scaling]:
    """Training rows and test rows (inputs and targets) in units of the training rows alone, and these units.

    Raises:
        ValueError: If the table has no split, a value is missing, or the training targets are all the same.

    Example:
        >>> x, y = np.array([[1.0, 7.0], [3.0, 7.0], [4.0, 8.0]]), np.array([10.0, 30.0, 40.0])
        >>> table = Table("toy", x, y, ("a", "b"), train=np.array([0, 1]), test=np.array([2]))
        >>> train, test, scaling = standardised(table)
        >>> test
        (array([[2., 0.]]), array([2.]))
        >>> scaling.raw_targets(test[1])
        array([40.])
    """
    if table.train is None or table.test is None:
        raise ValueError(f"{table.name} has no training and test part to standardise by")
    if num_bad := np.sum(~np.isfinite(table.x)) + np.sum(~np.isfinite(table.y)):
        raise ValueError(f"{table.name} has {num_bad} missing or infinite values; drop or impute them first")
    x, y = table.x[table.train], table.y[table.train]
    if np.ptp(y) == 0:
        raise ValueError(f"the training targets of {table.name} are all {y[0]:g}; there is nothing to predict")
    # The computed deviation of a constant can be 1e-13 instead of 0, and would blow rounding errors up.
    x_sd = np.where(np.ptp(x, axis=0) > 0, x.std(axis=0), 0.0)
    scaling = Scaling(x.mean(axis=0), x_sd, float(y.mean()), float(y.std()))
    test = scaling.inputs(table.x[table.test]), scaling.targets(table.y[table.test])
    return (scaling.inputs(x), scaling.targets(y)), test, scaling
