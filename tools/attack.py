"""What a server that chooses its posteriors can read, with and without the limits of a client.

    .venv/bin/python tools/attack.py thresholds      # about two minutes
    .venv/bin/python tools/attack.py least-squares   # about five minutes

The first halves intervals of a threshold until one patient is left between two answers, through the protocol
(`tests/hostile.py`). The second has the slope and the curvature of a logistic likelihood at random means within the
limits, and solves for all rows at once: no limit on posteriors prevents this attack; a limit on the number of updates
does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from scipy.optimize import least_squares

from cavity.network.limits import MAX_PRIOR_SDS
from tests.hostile import HostileServer, patients

PRIOR_SDS = np.array([10.0, 2.5, 2.5, 2.5])
READ = 0.02  # in scaled columns: 0.4 years


def thresholds() -> None:
    """The attack beyond and at the limits, on a client without limits and on one with them."""
    for limited, how in ((False, (1e4, 1e10)), (True, (1e4, 1e10)), (True, (12.4, 2400.0))):
        with tempfile.TemporaryDirectory() as folder:
            server = HostileServer(Path(folder), limited=limited)
            found = server.read_patients(*how, 600)
            print(f"limits {limited}: {server.answered} answers, {len(found)} of 100 patients read", flush=True)


def least_squares_attack(num_rows: int = 50) -> None:
    """Rows that are found from slopes and curvatures, the best of three starts."""
    rows = _rows(num_rows, 100)
    for num_answers in (20, 60, 200):
        read = [_solved(rows, num_answers, seed) for seed in range(3)]
        print(f"{num_answers} answers within the limits: {max(read)} of {num_rows} patients read", flush=True)


def _rows(num_rows: int, seed: int) -> np.ndarray:
    columns = patients(num_rows, seed)
    scaled = [(columns["age"] - 55) / 20, (columns["bmi"] - 27) / 5, columns["sex"]]
    return np.column_stack([*scaled, columns["died"]]).astype(float)


def _solved(rows: np.ndarray, num_answers: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    means = rng.uniform(-1, 1, (num_answers, 4)) * MAX_PRIOR_SDS * PRIOR_SDS
    start = _rows(len(rows), seed)
    start[:, 3] = 0.5
    seen = _answers(rows.ravel(), means)
    found = least_squares(lambda v: _answers(v, means) - seen, start.ravel(), lambda v: _slopes(v, means), max_nfev=150)
    nearest = [np.abs(found.x.reshape(-1, 4)[:, :3] - row[:3]).max(axis=1).min() for row in rows]
    return int(np.sum(np.array(nearest) < READ))


def _parts(values: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = values.reshape(-1, 4)
    x = np.column_stack([np.ones(len(rows)), rows[:, :3]])
    return x, rows[:, 3], 0.5 * (1 + np.tanh(x @ means.T / 2))


def _answers(values: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The slope and the curvature of the log likelihood at each mean."""
    x, y, p = _parts(values, means)
    slope = np.einsum("nt,na->ta", y[:, None] - p, x)
    curvature = np.einsum("nt,na,nb->tab", p * (1 - p), x, x).reshape(len(means), -1)
    return np.concatenate([slope, curvature], axis=1).ravel()


def _slopes(values: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Their derivatives in every row's predictors and outcome."""
    x, y, p = _parts(values, means)
    w, unit = p * (1 - p), np.eye(4)[1:]
    moved = w[:, :, None] * means[None, :, 1:]  # of p, in each predictor
    slope = -np.einsum("ntk,na->tank", moved, x) + np.einsum("nt,ka->tank", y[:, None] - p, unit)
    bend = np.einsum("ntk,nt,na,nb->tabnk", moved, 1 - 2 * p, x, x)
    bend += np.einsum("nt,ka,nb->tabnk", w, unit, x) + np.einsum("nt,na,kb->tabnk", w, x, unit)
    by_x = np.concatenate([slope, bend.reshape(len(means), 16, len(x), 3)], axis=1)
    by_y = np.zeros((len(means), 20, len(x), 1))
    by_y[:, :4, :, 0] = x.T
    return np.concatenate([by_x, by_y], axis=3).reshape(len(means) * 20, -1)


if __name__ == "__main__":
    parts = {"thresholds": thresholds, "least-squares": least_squares_attack}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    parts[sys.argv[1]]()
