"""Wrong labels on purpose, to see how much of them an algorithm bears.

Both functions flip the labels of a random `share` of all rows, rounded to whole rows, and leave the others as
they are. `labels` are class indices from 0, shape [n]; what is returned is a new array in int64. `rng` is the
only source of randomness. Flipping two classes is `flip_uniformly` with `num_classes=2`.
"""

from collections.abc import Sequence

import numpy as np

from cavity.errors import CavityError

# Which digit the authors of FedGVI give instead of each: 0 becomes 1, 1 becomes 7, and so on.
MNIST_FLIPS = (1, 7, 6, 4, 3, 8, 0, 6, 1, 0)


def flip_by_class(
    rng: np.random.Generator, labels: np.ndarray, share: float, mapping: Sequence[int] | np.ndarray
) -> np.ndarray:
    """A share of the rows, of any class, get the label `mapping[label]`.

    Args:
        rng: Source of randomness.
        labels: Class indices, shape [n].
        share: Share of all rows to flip, in [0, 1).
        mapping: For each class, the class to take instead. A class that is its own stays right.

    Raises:
        CavityError: If the share is out of range, or the mapping does not fit the labels.

    Example:
        >>> labels = np.full(10, 3)
        >>> sorted(flip_by_class(np.random.default_rng(0), labels, 0.4, MNIST_FLIPS).tolist())
        [3, 3, 3, 3, 3, 3, 4, 4, 4, 4]
    """
    targets = np.asarray(mapping)
    if targets.ndim != 1 or targets.dtype.kind not in "iu" or not np.all((targets >= 0) & (targets < len(targets))):
        raise CavityError(f"mapping must give each of its classes, from 0, another of them; it is {mapping}")
    flipped = _class_indices(labels, len(targets))
    rows = _some_rows(rng, len(flipped), share)
    flipped[rows] = targets[flipped[rows]]
    return flipped


def flip_uniformly(rng: np.random.Generator, labels: np.ndarray, share: float, num_classes: int) -> np.ndarray:
    """A share of the rows get another class, each of the wrong ones with the same probability.

    Args:
        rng: Source of randomness.
        labels: Class indices, shape [n].
        share: Share of all rows to flip, in [0, 1).
        num_classes: Number of classes, at least two.

    Raises:
        CavityError: If the share is out of range, or the labels are not indices of so many classes.

    Example:
        >>> labels = np.zeros(10, dtype=int)
        >>> sorted(flip_uniformly(np.random.default_rng(0), labels, 0.4, num_classes=2).tolist())
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    if num_classes < 2:
        raise CavityError(f"num_classes must be at least two, or no label can be wrong; it is {num_classes}")
    flipped = _class_indices(labels, num_classes)
    rows = _some_rows(rng, len(flipped), share)
    flipped[rows] = (flipped[rows] + rng.integers(1, num_classes, size=len(rows))) % num_classes
    return flipped


def _some_rows(rng: np.random.Generator, num_rows: int, share: float) -> np.ndarray:
    if not 0 <= share < 1:
        raise CavityError(f"share must be in [0, 1), the part of all rows to flip; it is {share}")
    return rng.choice(num_rows, size=round(share * num_rows), replace=False)


def _class_indices(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """A copy of the labels, in int64."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise CavityError(f"one label a row is needed, of shape [n]; the shape is {labels.shape}")
    if labels.dtype.kind not in "biu":
        raise CavityError(f"labels must be class indices, integers; they are {labels.dtype}. Convert them first")
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise CavityError(
            f"labels must be in [0, {num_classes - 1}], for {num_classes} classes; "
            f"they go from {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64)
