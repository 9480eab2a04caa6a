"""Wrong labels on purpose, to test how robust an algorithm is.

Both functions flip the labels of a random `share` of all rows, rounded to whole rows, and do not change the others.
`labels` are class indices from 0, shape [n]. The result is a new array of int64. `rng` is the only source of
randomness. For two classes, use `flip_uniformly` with `num_classes=2`.
"""

from collections.abc import Sequence

import numpy as np

from cavity.errors import CavityError

# The wrong digit that the authors of FedGVI use for each digit: 0 becomes 1, 1 becomes 7, and so on.
MNIST_FLIPS = (1, 7, 6, 4, 3, 8, 0, 6, 1, 0)


def flip_by_class(
    rng: np.random.Generator, labels: np.ndarray, share: float, mapping: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Give a share of the rows, of any class, the label `mapping[label]`.

    Args:
        rng: Source of randomness.
        labels: Class indices, shape [n].
        share: Share of all rows to flip, in [0, 1).
        mapping: For each class, its wrong class. A class that is mapped to itself does not change.

    Returns:
        The labels after flipping, shape [n].

    Raises:
        CavityError: If the share is out of range, or the mapping does not fit the labels.

    Example:
        >>> labels = np.full(10, 3)
        >>> sorted(flip_by_class(np.random.default_rng(0), labels, 0.4, MNIST_FLIPS).tolist())
        [3, 3, 3, 3, 3, 3, 4, 4, 4, 4]
    """
    targets = np.asarray(mapping)
    if targets.ndim != 1 or targets.dtype.kind not in "iu" or not np.all((targets >= 0) & (targets < len(targets))):
        raise CavityError(f"mapping must give a class in [0, {len(targets) - 1}] for each class; it is {mapping}")
    flipped = _class_indices(labels, len(targets))
    rows = _some_rows(rng, len(flipped), share)
    flipped[rows] = targets[flipped[rows]]
    return flipped


def flip_uniformly(rng: np.random.Generator, labels: np.ndarray, share: float, num_classes: int) -> np.ndarray:
    """Give a share of the rows another class, each of the wrong classes with the same probability.

    Args:
        rng: Source of randomness.
        labels: Class indices, shape [n].
        share: Share of all rows to flip, in [0, 1).
        num_classes: Number of classes, at least two.

    Returns:
        The labels after flipping, shape [n].

    Raises:
        CavityError: If the share is out of range, or the labels are not in [0, num_classes).

    Example:
        >>> labels = np.zeros(10, dtype=int)
        >>> sorted(flip_uniformly(np.random.default_rng(0), labels, 0.4, num_classes=2).tolist())
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    if num_classes < 2:
        raise CavityError(f"num_classes must be at least two; it is {num_classes}")
    flipped = _class_indices(labels, num_classes)
    rows = _some_rows(rng, len(flipped), share)
    flipped[rows] = (flipped[rows] + rng.integers(1, num_classes, size=len(rows))) % num_classes
    return flipped


def _some_rows(rng: np.random.Generator, num_rows: int, share: float) -> np.ndarray:
    if not 0 <= share < 1:
        raise CavityError(f"share must be in [0, 1), the share of all rows to flip; it is {share}")
    return rng.choice(num_rows, size=round(share * num_rows), replace=False)


def _class_indices(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """A copy of the labels, in int64."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise CavityError(f"labels must have shape [n], one per row; the shape is {labels.shape}")
    if labels.dtype.kind not in "biu":
        raise CavityError(
            f"labels must be class indices, which are integers; they are {labels.dtype}. Convert them first"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise CavityError(
            f"labels must be in [0, {num_classes - 1}], for {num_classes} classes; "
            f"they go from {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64)
