"""Customers of banks: UCI Bank Marketing and Credit Approval."""

import numpy as np

from cavity_experiments.sources.encoding import encoded
from cavity_experiments.sources.reading import Table, check, csv_file, local_file

_BANK_NUMERIC = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")
_BANK_CATEGORICAL = ("job", "marital", "education", "default", "housing", "loan", "contact", "month", "poutcome")
_BANK_ROWS, _BANK_YES = 45_211, 5_289

_CREDIT_NUMERIC = ("A2", "A3", "A8", "A11", "A14", "A15")
_CREDIT_CATEGORICAL = ("A1", "A4", "A5", "A6", "A7", "A9", "A10", "A12", "A13")
_CREDIT_ROWS, _CREDIT_COMPLETE, _CREDIT_APPROVED = 690, 653, 296


def bank(training_rows: np.ndarray | None = None, *, duration: bool = True) -> Table:
    """UCI Bank Marketing: does a customer subscribe a deposit after a call?

    45,211 customers, 5,289 of whom did. Features are seven standardised numeric columns, then one 0/1 column for each
    level of the nine categorical ones (`job=student`), where "unknown" for missing is a level. In `pdays`, -1 stands
    for a customer who was not called before, as the source has it.

    Args:
        training_rows: Row indices (or a boolean mask) whose means and standard deviations standardise; all if None.
        duration: Whether to keep the length of the call, as papers do. It is known only when the outcome is, so leave
            it out for a model that is to predict.

    Returns:
        A table with x in float64, shape [45211, 51] (50 without the duration), and y = 1 for a subscription.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one, or `training_rows` cannot standardise.
    """
    path = local_file("bank", "bank_marketing/bank_full.csv.gz")
    raw = csv_file(path, (*_BANK_NUMERIC, *_BANK_CATEGORICAL, "y"), _BANK_ROWS, on_openml=False)
    y = (raw["y"] == "yes").astype(np.int64)
    check(path, "the number of subscriptions", int(y.sum()), _BANK_YES)
    numeric = [column for column in _BANK_NUMERIC if duration or column != "duration"]
    x, columns = encoded(raw, numeric, _BANK_CATEGORICAL, training_rows)
    return Table(name="bank", x=x, y=y, columns=columns)


def credit(training_rows: np.ndarray | None = None) -> Table:
    """UCI Credit Approval: is an application for a credit card approved?

    The 653 applications of 690 in which nothing is missing, 296 of them approved; the other 37 are left out. Names and
    levels are anonymous. Features are six standardised numeric columns, then one 0/1 column for each level of the nine
    categorical ones.

    Args:
        training_rows: Indices (or a boolean mask) among the 653 rows whose means and standard deviations standardise;
            all if None.

    Returns:
        A table with x in float64, shape [653, 46], and y = 1 for an approval.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one, or `training_rows` cannot standardise.
    """
    path = local_file("credit", "credit_approval/crx.csv.gz")
    raw = csv_file(path, (*_CREDIT_NUMERIC, *_CREDIT_CATEGORICAL, "A16"), _CREDIT_ROWS, on_openml=False)
    complete = np.all([values != "?" for values in raw.values()], axis=0)
    raw = {column: values[complete] for column, values in raw.items()}
    y = (raw["A16"] == "+").astype(np.int64)
    check(
        path,
        "the number of complete rows, and of approvals",
        (len(y), int(y.sum())),
        (_CREDIT_COMPLETE, _CREDIT_APPROVED),
    )
    x, columns = encoded(raw, _CREDIT_NUMERIC, _CREDIT_CATEGORICAL, training_rows)
    return Table(name="credit", x=x, y=y, columns=columns)
