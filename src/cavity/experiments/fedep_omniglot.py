"""FedEP over people: 160 drawers of Omniglot, each a client with one drawing of every character of an alphabet.

242 characters of eight alphabets. Nobody draws characters of an alphabet that is not theirs, so labels are skewed by
nature. Of each character's twenty drawings, three are test images and two are for choices, at random, each time those
of other drawers; so every drawer keeps about three quarters of the own ones, and nobody sees a held-out drawing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cavity.data import partition, sources
from cavity.experiments import fedep_comparison as comparison
from cavity.experiments.fedep_comparison import Task
from cavity.experiments.fedep_images import halved
from cavity.experiments.fedep_methods import FEDAVG, FEDPA, SMALL_STEPS, STATEFUL, STATELESS, Choice, Setting
from cavity.experiments.runner import Journal, Size
from cavity.models import cnn_classifier

NUM_CLASSES, FOR_TEST, FOR_VALIDATION = 242, 3, 2
CHANNELS, KERNEL = (8, 16), 3
EVERY, WINDOW, THRESHOLDS, FULL_SEEDS = 5, 3, (20.0, 30.0), 3
CHOICES = {
    FEDAVG: Choice(server_step_size=0.2),
    SMALL_STEPS: Choice(server_step_size=0.05),
    FEDPA: Choice(server_step_size=0.2, precision_per_row=0.1),
    **dict.fromkeys((*STATEFUL, *STATELESS), Choice(server_step_size=0.5, precision_per_row=0.1)),
}
SETTING = Setting(clients_per_round=20, burn_in=40, rounds=60, num_epochs=5, batch_size=20, choices=CHOICES)


def fedep_omniglot(journal: Journal, size: Size, seed: int) -> None:
    """All methods over the drawers; where all is asked, with three seeds."""
    quick = size is Size.QUICK
    every = 2 if quick else EVERY
    setting = replace(SETTING, burn_in=4, rounds=4, num_epochs=1) if quick else SETTING
    journal.settings(
        data=f"Omniglot, 242 characters at 14 x 14; of 20 drawings {FOR_TEST} for test, {FOR_VALIDATION} for choices",
        clients="160 drawers of eight alphabets",
        model=f"convolutions {CHANNELS} of {KERNEL} x {KERNEL}, then linear; prior N(0, 1)",
        **comparison.settings(setting, every, WINDOW),
    )
    seeds = range(seed, seed + (FULL_SEEDS if size is Size.FULL else 1))

    def clients(this: int) -> Task:
        return drawers(this, setting, every)

    comparison.run_all(journal, seeds, clients, "fedep-5", judged=not quick)


def drawers(seed: int, setting: Setting, every: int = EVERY) -> Task:
    """The clients of one seed."""
    table = sources.omniglot_small()
    held_out, test, rest = held_out_drawings(np.random.default_rng((seed, 85)), table.y)
    x = halved(table.x)
    clients = partition.select((x[rest], table.y[rest]), partition.by_column(table.drawer[rest]))
    return Task(
        model=cnn_classifier((14, 14, 1), NUM_CLASSES, channels=CHANNELS, kernel=KERNEL, seed=seed),
        clients=clients,
        validation=(x[held_out], table.y[held_out]),
        test=(x[test], table.y[test]),
        setting=setting,
        every=every,
        window=WINDOW,
        thresholds=THRESHOLDS,
        seed=seed,
    )


def held_out_drawings(rng: np.random.Generator, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows for validation, for test and for the clients: of each character so many, at random."""
    rank = np.empty(len(labels), int)
    for character in np.unique(labels):
        rows = np.flatnonzero(labels == character)
        rank[rows] = rng.permutation(len(rows))
    held_out = rank < FOR_VALIDATION
    test = ~held_out & (rank < FOR_VALIDATION + FOR_TEST)
    return np.flatnonzero(held_out), np.flatnonzero(test), np.flatnonzero(~held_out & ~test)
