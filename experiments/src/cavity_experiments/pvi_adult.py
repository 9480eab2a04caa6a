"""PVI on UCI Adult (Ashman et al., 2022, section 5.1 and appendix E.1): how soon does it reach pooling?

Logistic regression with a standard normal prior on 109 coefficients, ten clients, two splits: A is homogeneous; in B
five small clients have a label share of their own (table 2). The paper's family is mean field and its local solver
Adam, damped by 0.2 when synchronous; here the family is the full Gaussian, the local solves are exact (natural
gradient with quadrature) and the damping adapts, so a handful of rounds is enough. The reference is the same model
fit to all the clients' rows at one client, and KL is KL(federated : pooled) in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavity.algorithms import PVI
from cavity.core import Schedule
from cavity.datasets import partition
from cavity.evaluation.diagnostics import kl
from cavity.fit.run import Fit, run
from cavity.models import logistic_regression
from cavity.reporting import plots
from cavity.schedules import Sequential, Synchronous
from cavity_experiments import uci
from cavity_experiments.runner import Journal, Size

SPLITS = uci.SPLITS["adult"]
SCHEDULES: dict[str, Schedule] = {"synchronous": Synchronous(), "sequential": Sequential()}
BAR = 1e-2  # nats, and in words in `Case.bar`
FULL_SEEDS = 5


@dataclass(frozen=True)
class Case:
    """One run of `rounds` rounds (or passes), which must reach the threshold after `within` of them."""

    check: str
    schedule: str
    split: str
    within: int
    rounds: int

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.schedule}, split {self.split}"

    @property
    def bar(self) -> str:
        """The threshold for KL(federated : pooled), in words."""
        return f"< 1e-2 within {self.within} {'rounds' if self.schedule == 'synchronous' else 'passes'}"


CASES = (
    Case("core-3a", "synchronous", "A", within=3, rounds=10),
    Case("core-3b", "synchronous", "B", within=10, rounds=10),
    Case("core-3c", "sequential", "A", within=2, rounds=6),
    Case("core-3d", "sequential", "B", within=4, rounds=6),
)


def pvi_adult(journal: Journal, size: Size, seed: int) -> None:
    """Run the four cases (in the quick size only those of split A); with five seeds in the full size."""
    seeds = range(seed, seed + (FULL_SEEDS if size is Size.FULL else 1))
    cases = [case for case in CASES if size is not Size.QUICK or case.split == "A"]
    journal.settings(
        data="UCI Adult, all 48,842 rows",
        training_share=uci.TRAINING_SHARE,
        num_clients=uci.NUM_CLIENTS,
        splits={name: {"beta": beta, "kappa": kappa} for name, (beta, kappa) in SPLITS.items()},
        model="logistic regression, prior N(0, 1), full covariance",
        solver="natural gradient, 100 steps or a KL of 1e-10",
        damping="adaptive, from 1",
        seeds=list(seeds),
    )
    reached: dict[str, list[float]] = {case.check: [] for case in CASES}
    histories: dict[str, list[dict[str, Any]]] = {}
    for current in seeds:
        for case, fit in _fits(journal, cases, current):
            kls = [record["kl"] for record in fit.history]
            reached[case.check].append(kls[: case.within][-1])
            entries = ("round", "kl", "gap", "exponent", "communications", "bytes", "seconds")
            histories[f"{case.label}, seed {current}"] = [{e: record[e] for e in entries} for record in fit.history]
            journal.put("histories", histories)
    for case in CASES:
        # comparisons with NaN are false, so a run that broke down fails
        worst = float(np.max(reached[case.check])) if reached[case.check] else None
        journal.check(f"{case.check} PVI {case.label}", worst, case.bar, None if worst is None else worst < BAR)
    first = {case.label: histories[f"{case.label}, seed {seed}"] for case in cases}
    journal.figure("kl", lambda: plots.compare(first, "kl", label="KL(federated : pooled), nats", bar=BAR))


def _fits(journal: Journal, cases: list[Case], seed: int) -> Iterator[tuple[Case, Fit]]:
    """Each case's fit for one seed; it is written to the journal first."""
    rows = uci.rows("adult", seed)
    model = logistic_regression(rows.columns, prior_scale=1.0)
    for split in SPLITS:
        here = [case for case in cases if case.split == split]
        if not here:
            continue
        parts = uci.parts("adult", split, rows.train[1], seed)
        uci.describe(journal, rows.train[1], parts, seed=seed, split=split)
        journal.say(f"seed {seed}, split {split}: all rows at one client, the reference")
        together = {"pooled": uci.together(rows.train, parts)}
        pooled = run(PVI(model), together, seed=seed, metrics=uci.scores(model, rows))
        _record(journal, seed, split, "pooled", pooled)
        for case in here:
            fit = run(
                PVI(model),
                partition.select(rows.train, parts),
                schedule=SCHEDULES[case.schedule],
                rounds=case.rounds,
                seed=seed,
                metrics={"kl": lambda q, reference=pooled.posterior: kl(q, reference)} | uci.scores(model, rows),
                observers=[_progress(journal, f"seed {seed}, {case.label}")],
            )
            _record(journal, seed, split, case.schedule, fit)
            yield case, fit


def _progress(journal: Journal, label: str) -> Callable[[dict[str, Any], Any], None]:
    def observe(record: dict[str, Any], server: Any) -> None:
        journal.say(f"{label}: round {record['round']}, KL {record['kl']:.2e}, {record['seconds']:.0f} s")

    return observe


def _record(journal: Journal, seed: int, split: str, schedule: str, fit: Fit) -> None:
    """Record the cost at the last round, and the scores there and at the round chosen by validation."""
    history, last = fit.history, fit.history[-1]
    below = [record.get("kl", 0.0) < BAR for record in history]
    who = {"seed": seed, "split": split, "schedule": schedule}
    journal.row(
        "runs",
        **who,
        rounds=last["round"],
        below_bar=None if schedule == "pooled" or True not in below else below.index(True) + 1,
        kl=last.get("kl"),
        visits=last["communications"],
        MB=round(last["bytes"] / 1e6, 2),
        seconds=round(last["seconds"], 1),
    )
    journal.row("scores", **who, **uci.scored(history))
