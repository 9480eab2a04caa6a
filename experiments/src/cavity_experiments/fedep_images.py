"""FedEP on images (Guo et al., 2023, section 3.2): a convolutional network over 500 clients with few labels each.

The paper's CIFAR-100 needs days on GPUs; this experiment has the same structure on a smaller scale. Fashion-MNIST,
halved to 14 by 14 pixels, is divided among 500 clients of equal size, whose labels follow a Dirichlet distribution with
0.1 for each class (as the paper's clients' coarse labels do). 20 clients work per round. All methods start from the
same rounds of FedAvg.

Settings were chosen on 5,000 training images that no client has, with a split of another seed than the reported ones
(docs/results/fedep.md lists what was tried). Test images are evaluated in the reported runs only.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cavity.datasets import partition
from cavity.models import cnn_classifier
from cavity_experiments import fedep_comparison as comparison
from cavity_experiments import sources
from cavity_experiments.fedep_comparison import Task
from cavity_experiments.fedep_methods import FEDAVG, FEDPA, SMALL_STEPS, STATEFUL, STATELESS, Choice, Setting
from cavity_experiments.runner import Journal, Size

NUM_CLIENTS, NUM_CLASSES, HELD_OUT, DIRICHLET = 500, 10, 5_000, 0.1
CHANNELS, KERNEL = (16, 32), 3
EVERY, WINDOW, THRESHOLDS, FULL_SEEDS = 5, 3, (76.0, 78.0), 3
CHOICES = {
    FEDAVG: Choice(server_step_size=0.2, step_size=0.03),
    SMALL_STEPS: Choice(server_step_size=0.05, step_size=0.03),
    FEDPA: Choice(server_step_size=0.2, step_size=0.03, precision_per_row=0.03),
    **dict.fromkeys((*STATEFUL, *STATELESS), Choice(server_step_size=0.5, step_size=0.01, precision_per_row=0.03)),
}
SETTING = Setting(clients_per_round=20, burn_in=40, rounds=25, num_epochs=3, batch_size=20, choices=CHOICES)


def fedep_images(journal: Journal, size: Size, seed: int) -> None:
    """All methods on Fashion-MNIST; where all is asked, with three seeds."""
    quick = size is Size.QUICK
    every = 2 if quick else EVERY
    setting = replace(SETTING, burn_in=4, rounds=6, num_epochs=1) if quick else SETTING
    journal.settings(
        data=f"Fashion-MNIST at 14 x 14; {HELD_OUT} training images held out to choose, 10,000 test images",
        clients=f"{NUM_CLIENTS} of equal size, label shares ~ Dirichlet({DIRICHLET} for each class)",
        model=f"convolutions {CHANNELS} of {KERNEL} x {KERNEL}, then linear; prior N(0, 1)",
        **comparison.settings(setting, every, WINDOW),
    )
    seeds = range(seed, seed + (FULL_SEEDS if size is Size.FULL else 1))

    def clients(this: int) -> Task:
        return federation(this, setting, num_images=6_000 if quick else None, every=every)

    comparison.run_all(journal, seeds, clients, "fedep-4", judged=not quick)


def federation(seed: int, setting: Setting, num_images: int | None = None, every: int = EVERY) -> Task:
    """The clients of one seed; of the training images only so many, if given."""
    table = sources.fashion_mnist()
    rng = np.random.default_rng((seed, 84))
    held_out, rest = np.split(rng.permutation(60_000)[:num_images], [HELD_OUT if num_images is None else 1_000])
    x = halved(table.x)
    # a Dirichlet of 0.1 for each class has, for ten, ten times that in all
    parts = partition.dirichlet(rng, table.y[rest], NUM_CLIENTS, NUM_CLASSES * DIRICHLET)
    return Task(
        model=cnn_classifier((14, 14, 1), NUM_CLASSES, channels=CHANNELS, kernel=KERNEL, seed=seed),
        clients=partition.select((x[rest], table.y[rest]), parts),
        validation=(x[held_out], table.y[held_out]),
        test=(x[60_000:], table.y[60_000:]),
        setting=setting,
        every=every,
        window=WINDOW,
        thresholds=THRESHOLDS,
        seed=seed,
    )


def halved(x: np.ndarray) -> np.ndarray:
    """Images of 28 x 28 pixels as means over 2 x 2 of them, with an axis for the one colour; shape [n, 14, 14, 1].

    Example:
        >>> halved(np.arange(784.0)[None])[0, 0, :2, 0]
        array([14.5, 16.5])
    """
    return x.reshape(-1, 14, 2, 14, 2, 1).mean((2, 4))
