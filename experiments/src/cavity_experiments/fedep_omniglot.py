"""FedEP over people: 160 drawers of Omniglot, each a client with one drawing of every character of an alphabet.

The first 24 characters of each of eight alphabets, or all where there are fewer: 183 classes. Each person draws one
alphabet only, so the labels differ between clients. Of the twenty drawings of a character three are test images and two
are validation images, from different people for each character. So each person keeps three quarters of their drawings,
and no client has a held-out drawing. Clients then have 12 to 18 rows, and all run as one program.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cavity.datasets import partition
from cavity.models import cnn_classifier
from cavity_experiments import fedep_comparison as comparison
from cavity_experiments import sources
from cavity_experiments.fedep_comparison import Task
from cavity_experiments.fedep_images import halved
from cavity_experiments.fedep_methods import FEDAVG, FEDPA, SMALL_STEPS, Choice, Setting
from cavity_experiments.runner import Journal, Size

MOST_CHARACTERS, NUM_CLASSES, FOR_TEST, FOR_VALIDATION = 24, 183, 3, 2
CHANNELS, KERNEL = (8, 12), 3
EVERY, WINDOW, THRESHOLDS, FULL_SEEDS = 10, 3, (40.0, 45.0), 3
CHOICES = {
    FEDAVG: Choice(server_step_size=0.2, step_size=0.1),
    SMALL_STEPS: Choice(server_step_size=0.05, step_size=0.1),
    FEDPA: Choice(server_step_size=0.2, step_size=0.1, precision_per_row=0.1),
    **dict.fromkeys(("FedEP I", "FedEP M"), Choice(server_step_size=1.0, step_size=0.1, precision_per_row=0.02)),
    **dict.fromkeys(("FedEP L", "FedEP V"), Choice(server_step_size=0.2, step_size=0.03, precision_per_row=0.03)),
    **dict.fromkeys(("FedSEP I", "FedSEP M"), Choice(server_step_size=0.5, step_size=0.1, precision_per_row=0.02)),
    **dict.fromkeys(("FedSEP L", "FedSEP V"), Choice(server_step_size=0.5, step_size=0.03, precision_per_row=0.1)),
}
SETTING = Setting(
    clients_per_round=20,
    burn_in=100,
    rounds=60,
    num_epochs=5,
    batch_size=20,
    choices=CHOICES,
    first=Choice(server_step_size=0.2, step_size=0.2),
)


def fedep_omniglot(journal: Journal, size: Size, seed: int) -> None:
    """All methods over the drawers; where all is asked, with three seeds."""
    quick = size is Size.QUICK
    every = 2 if quick else EVERY
    setting = replace(SETTING, burn_in=4, rounds=6, num_epochs=1) if quick else SETTING
    journal.settings(
        data=f"Omniglot at 14 x 14, {NUM_CLASSES} classes; of 20 drawings {FOR_TEST} test, {FOR_VALIDATION} choose",
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
    parts = dealt(np.random.default_rng((seed, 85)), table)
    used = np.unique(table.y[np.concatenate(list(parts.values()))])
    x, y = halved(table.x), np.searchsorted(used, table.y)  # classes from 0, without the characters that are left out
    rows = parts["clients"]
    return Task(
        model=cnn_classifier((14, 14, 1), NUM_CLASSES, channels=CHANNELS, kernel=KERNEL, seed=seed),
        clients=partition.select((x[rows], y[rows]), partition.by_column(table.drawer[rows])),
        validation=(x[parts["validation"]], y[parts["validation"]]),
        test=(x[parts["test"]], y[parts["test"]]),
        setting=setting,
        every=every,
        window=WINDOW,
        thresholds=THRESHOLDS,
        seed=seed,
    )


def dealt(rng: np.random.Generator, table: sources.Omniglot) -> dict[str, np.ndarray]:
    """Rows for "test", "validation" and "clients"; any four characters in a row hold out each drawer once."""
    parts: dict[str, list[int]] = {"test": [], "validation": [], "clients": []}
    held_out = FOR_TEST + FOR_VALIDATION
    for alphabet in np.unique(table.alphabet):
        places = rng.permutation(np.unique(table.drawer[table.alphabet == alphabet])).tolist()
        for i, character in enumerate(np.unique(table.y[table.alphabet == alphabet])[:MOST_CHARACTERS]):
            first = held_out * i + i // 4
            for row in np.flatnonzero(table.y == character):
                place = (places.index(table.drawer[row]) - first) % len(places)
                part = "test" if place < FOR_TEST else "validation" if place < held_out else "clients"
                parts[part].append(int(row))
    return {name: np.array(rows) for name, rows in parts.items()}
