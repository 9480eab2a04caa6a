"""Survival likelihoods in plain numpy, event by event, and rows to try them on."""

import numpy as np


def log_partial_likelihood(eta, y, weight, ties):
    """Cox's log partial likelihood; a row of weight 2 is written twice."""
    rows = np.repeat(np.arange(len(eta)), np.asarray(weight, int))
    eta, y = eta[rows], y[rows]
    start, stop, status = (y[:, 0] if y.shape[1] == 3 else np.zeros(len(y))), y[:, -2], y[:, -1]
    total = 0.0
    for time in np.unique(stop[status == 1]):
        events = np.flatnonzero((stop == time) & (status == 1))
        at_risk = eta[(start < time) & (time <= stop)]
        largest = at_risk.max()
        everybody, dying = np.exp(at_risk - largest).sum(), np.exp(eta[events] - largest).sum()
        for i, event in enumerate(events):
            share = i / len(events) if ties == "efron" else 0.0
            total += eta[event] - largest - np.log(everybody - share * dying)
    return total


def survival_rows(rng, num_rows, *, columns=2, num_times=20, unit=1.0, events=0.6):
    """Outcomes with many ties; with three columns some rows enter late."""
    stop = unit * rng.integers(1, num_times + 1, num_rows)
    status = (rng.random(num_rows) < events).astype(float)
    start = stop * np.where(rng.random(num_rows) < 0.5, 0.0, rng.uniform(0.0, 0.9, num_rows))
    return np.column_stack([stop, status] if columns == 2 else [start, stop, status])
