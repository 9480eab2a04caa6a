"""Quality of predicted probabilities: log likelihood, error rate, Brier score, area under the curve, calibration.

Every function takes the probabilities of the classes and the true labels:

- `probabilities`: shape [n, k], rows that sum to one; or, for two classes, shape [n], that of class 1.
- `labels`: shape [n], class indices 0, ..., k - 1 (0 and 1, or booleans, for two classes).

All results are averages over examples, so they do not grow with n. Outside `jit` values are checked: NaN, a number that
is not a probability and a label that is not a class raise ValueError. Inside `jit`, where values cannot be checked,
they give NaN. The computation is in JAX's precision for the given arrays (float32 unless 64-bit types are enabled).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

# Averages of probabilities may exceed one, and sums of them miss it, by rounding; bfloat16 has three digits.
_ABOVE_ONE = 1e-5
_SUM_TOLERANCE = 1e-2


def log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """Mean log predictive probability of the true class, in nats. Larger is better; at most 0.

    A true class of probability zero gives minus infinity.

    Args:
        probabilities: Class probabilities, shape [n, k], or of class 1, shape [n].
        labels: True classes, shape [n].

    Returns:
        A scalar.

    Example:
        >>> round(float(log_likelihood(np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([1, 0]))), 4)
        -0.4904
    """
    classes, labels = _checked(probabilities, labels)
    return jnp.mean(jnp.log(_of_true_class(classes, labels)))


def error_rate(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """Share of examples whose most probable class is not the true one. In [0, 1], smaller is better.

    Of equally probable classes the first is predicted; at p = 0.5 exactly, for shape [n], that is class 0.

    Args:
        probabilities: Class probabilities, shape [n, k], or of class 1, shape [n].
        labels: True classes, shape [n].

    Returns:
        A scalar.

    Example:
        >>> float(error_rate(np.array([0.9, 0.2, 0.6, 0.7]), np.array([1, 0, 0, 1])))
        0.25
    """
    _, correct = _confidence_and_correctness(*_checked(probabilities, labels))
    return jnp.mean(1 - correct)


def brier(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """Mean squared distance of the probabilities from the truth. Smaller is better.

    With e the one-hot vector of the true class y, the two definitions in use are

        shape [n, k]:   mean over examples of  sum over classes of (p_k - e_k)^2,  in [0, 2]
        shape [n]:      mean over examples of  (p - y)^2,                          in [0, 1]

    so two classes given as [n, 2] score twice what they score as [n].

    Args:
        probabilities: Class probabilities, shape [n, k], or of class 1, shape [n].
        labels: True classes, shape [n].

    Returns:
        A scalar.

    Example:
        >>> round(float(brier(np.array([0.9, 0.4]), np.array([1, 0]))), 4)
        0.085
    """
    classes, labels = _checked(probabilities, labels)
    truth = labels[:, None] == jnp.arange(classes.shape[1])
    squares = jnp.sum((classes - truth) ** 2, axis=1)
    squares = jnp.where(jnp.isnan(_of_true_class(classes, labels)), jnp.nan, squares)
    return jnp.mean(squares) / (2 if np.ndim(probabilities) == 1 else 1)


def auc(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """Area under the ROC curve of two classes: does class 1 get the larger probabilities? In [0, 1], 0.5 is chance.

        AUC = P(p of a random example of class 1 > p of one of class 0) + P(they are equal) / 2

    It is computed from ranks, so it does not measure calibration.

    Args:
        probabilities: Of class 1, shape [n], or of both classes, shape [n, 2].
        labels: True classes, shape [n], with at least one example of each.

    Returns:
        A scalar; NaN inside `jit` where a class has no example.

    Example:
        >>> float(auc(np.array([0.9, 0.4, 0.3, 0.4]), np.array([1, 1, 0, 0])))
        0.875
    """
    if np.shape(probabilities)[1:] not in ((), (2,)):
        raise ValueError(f"the area under the curve is for two classes, not {np.shape(probabilities)[1]}")
    classes, labels = _checked(probabilities, labels)
    if _is_concrete(labels) and len(np.unique(labels)) < 2:
        raise ValueError(f"the area under the curve needs examples of both classes; all are of class {labels[0]}")
    return _auc(classes, labels)


@jax.jit
def _auc(classes: Array, labels: Array) -> Array:
    p, is_one = classes[:, 1], labels == 1
    ordered = jnp.sort(p)
    # equal probabilities share the mean of their ranks, from 1
    rank = (jnp.searchsorted(ordered, p, side="left") + jnp.searchsorted(ordered, p, side="right") + 1) / 2
    num_ones = jnp.sum(is_one)
    num_pairs = num_ones * (len(p) - num_ones)
    larger = jnp.sum(jnp.where(is_one, rank, 0.0)) - num_ones * (num_ones + 1) / 2
    defined = (num_pairs > 0) & ~jnp.any(jnp.isnan(_of_true_class(classes, labels)))
    return jnp.where(defined, larger / jnp.maximum(num_pairs, 1), jnp.nan).astype(p.dtype)


def calibration_in_the_large(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """The mean predicted probability of class 1 minus its observed share. Zero is best; above zero, risk is too high.

    Args:
        probabilities: Of class 1, shape [n], or of both classes, shape [n, 2].
        labels: True classes, shape [n].

    Returns:
        A scalar, in [-1, 1].

    Example:
        >>> round(float(calibration_in_the_large(np.array([0.9, 0.4]), np.array([1, 0]))), 4)
        0.15
    """
    if np.shape(probabilities)[1:] not in ((), (2,)):
        raise ValueError(f"calibration in the large is for two classes, not {np.shape(probabilities)[1]}")
    classes, labels = _checked(probabilities, labels)
    bad = jnp.isnan(_of_true_class(classes, labels))
    return jnp.mean(jnp.where(bad, jnp.nan, classes[:, 1] - labels))


def reliability(
    probabilities: ArrayLike,
    labels: ArrayLike,
    num_bins: int = 15,
    equal_count: bool = False,
    of_class: int | None = None,
) -> tuple[Array, Array, Array]:
    """Confidence and accuracy of the predicted class, in bins of confidence; or of one class, for a predicted risk.

    The confidence is the probability of the most probable class; for shape [n] it is max(p, 1 - p).

    Args:
        probabilities: Class probabilities, shape [n, k], or of class 1, shape [n].
        labels: True classes, shape [n].
        num_bins: Number of bins.
        equal_count: If false, the bins are the intervals (i / num_bins, (i + 1) / num_bins]. If true, the
            examples are ordered by confidence and cut into bins of equal count (to within one); equal
            confidences keep the order of the rows, so where they straddle a cut the result depends on it.
        of_class: If given, the probability of this class takes the place of the confidence, and the share of
            examples that are of it that of the accuracy: predicted risk against observed share.

    Returns:
        For each bin, shape [num_bins]: the mean confidence, the share of correct predictions, and the number
        of examples. The first two are NaN where a bin is empty.

    Example:
        >>> probabilities, labels = np.array([0.9, 0.2, 0.8, 0.6]), np.array([1, 0, 0, 1])
        >>> confidence, accuracy, count = reliability(probabilities, labels, num_bins=5)
        >>> count.tolist(), accuracy[-1].item()
        ([0, 0, 1, 2, 1], 1.0)
    """
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1; it is {num_bins}")
    classes, labels = _checked(probabilities, labels)
    if of_class is None:
        confidence, correct = _confidence_and_correctness(classes, labels)
    elif 0 <= of_class < classes.shape[1]:
        confidence, correct = _risk_and_outcome(classes, labels, of_class)
    else:
        raise ValueError(f"of_class must be a class from 0 to {classes.shape[1] - 1}; it is {of_class}")
    return _in_bins(confidence, correct, num_bins, equal_count)


@partial(jax.jit, static_argnames=("num_bins", "equal_count"))
def _in_bins(confidence: Array, correct: Array, num_bins: int, equal_count: bool) -> tuple[Array, Array, Array]:
    num_examples = confidence.shape[0]
    if equal_count:
        rank = jnp.argsort(jnp.argsort(confidence))
        cuts = jnp.asarray(np.arange(1, num_bins) * num_examples // num_bins)
        bins = jnp.searchsorted(cuts, rank, side="right")
    else:
        edges = jnp.asarray(np.arange(1, num_bins) / num_bins, dtype=confidence.dtype)
        bins = jnp.searchsorted(edges, confidence, side="left")
    member = bins == jnp.arange(num_bins)[:, None]
    count = jnp.sum(member, axis=1)
    defined = (count > 0) & ~jnp.any(jnp.isnan(confidence))

    def mean_in_bin(values: Array) -> Array:
        # `where` throughout: XLA may compute a boolean times NaN, or over NaN, as zero
        total = jnp.sum(jnp.where(member, values, 0), axis=1)
        return jnp.where(defined, total / jnp.maximum(count, 1), jnp.nan)

    return mean_in_bin(confidence), mean_in_bin(correct), count


def expected_calibration_error(
    probabilities: ArrayLike,
    labels: ArrayLike,
    num_bins: int = 15,
    equal_count: bool = False,
    of_class: int | None = None,
) -> Array:
    """Expected calibration error: how far accuracy is from confidence, averaged over bins. In [0, 1].

        ECE = sum over bins b of  (n_b / n) |accuracy_b - confidence_b|

    Empty bins contribute nothing. Smaller is better, but zero does not mean good: predicting the label shares
    everywhere is calibrated.

    Args:
        probabilities: Class probabilities, shape [n, k], or of class 1, shape [n].
        labels: True classes, shape [n].
        num_bins: Number of bins.
        equal_count: Bins of equal count rather than equal width; see `reliability`.
        of_class: Judge the probability of this class rather than the confidence; see `reliability`.

    Returns:
        A scalar.

    Example:
        >>> round(float(expected_calibration_error(np.array([0.9, 0.8]), np.array([1, 1]))), 4)
        0.15
    """
    confidence, accuracy, count = reliability(probabilities, labels, num_bins, equal_count, of_class)
    gap = jnp.where(count > 0, jnp.abs(accuracy - confidence), 0.0)
    return jnp.sum(count / jnp.sum(count) * gap)


@jax.jit
def _of_true_class(classes: Array, labels: Array) -> Array:
    """Probability of each example's true class; NaN where the label is not a class."""
    num_classes = classes.shape[1]
    index = jnp.where(labels < 0, num_classes, labels)[:, None]
    return jnp.take_along_axis(classes, index, axis=1, mode="fill", fill_value=jnp.nan)[:, 0]


@jax.jit
def _confidence_and_correctness(classes: Array, labels: Array) -> tuple[Array, Array]:
    """Probability of the predicted class, and 1 where it is right, else 0. Both are NaN for an invalid row."""
    bad = jnp.isnan(jnp.sum(classes, axis=1) + _of_true_class(classes, labels))
    confidence = jnp.where(bad, jnp.nan, jnp.max(classes, axis=1))
    correct = (jnp.argmax(classes, axis=1) == labels).astype(classes.dtype)
    return confidence, jnp.where(bad, jnp.nan, correct)


@partial(jax.jit, static_argnames="of_class")
def _risk_and_outcome(classes: Array, labels: Array, of_class: int) -> tuple[Array, Array]:
    """Probability of a class, and 1 where it is the true one, else 0. Both are NaN for an invalid row."""
    bad = jnp.isnan(jnp.sum(classes, axis=1) + _of_true_class(classes, labels))
    risk = jnp.where(bad, jnp.nan, classes[:, of_class])
    return risk, jnp.where(bad, jnp.nan, (labels == of_class).astype(classes.dtype))


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    """Probabilities of shape [n, k] and integer labels of shape [n], or a ValueError with what is wrong."""
    shape, labels_shape = np.shape(probabilities), np.shape(labels)
    if len(shape) not in (1, 2) or labels_shape != shape[:1]:
        raise ValueError(f"probabilities [n, k] or [n] and labels [n] are needed; shapes are {shape}, {labels_shape}")
    if 0 in shape or shape[1:] == (1,):
        raise ValueError(f"at least one example and two classes are needed; probabilities have shape {shape}")
    if _is_concrete(probabilities):
        _check_probabilities(np.asarray(probabilities))
    if _is_concrete(labels):
        _check_labels(np.asarray(labels), num_classes=shape[1] if len(shape) == 2 else 2)
    elif jnp.issubdtype(jnp.result_type(labels), jnp.floating):
        raise ValueError("inside jit, labels must be integers or booleans; they are floating-point numbers")
    return _canonical(jnp.asarray(probabilities), jnp.asarray(labels))


@jax.jit
def _canonical(classes: Array, labels: Array) -> tuple[Array, Array]:
    if not jnp.issubdtype(classes.dtype, jnp.floating):
        classes = classes.astype(float)
    classes = jnp.clip(classes, 0, 1)
    if classes.ndim == 1:
        classes = jnp.stack([1 - classes, classes], axis=1)
    return classes, labels.astype(int)


def _is_concrete(values: ArrayLike) -> bool:
    """Whether the values can be checked; inside `jit` they cannot."""
    return not isinstance(values, Tracer)


def _check_probabilities(probabilities: np.ndarray) -> None:
    num_nan = int(np.sum(np.isnan(probabilities)))
    if num_nan:
        raise ValueError(f"probabilities have {num_nan} NaN among {probabilities.size} values")
    low, high = float(np.min(probabilities)), float(np.max(probabilities))
    if low < 0 or high > 1 + _ABOVE_ONE:
        raise ValueError(f"probabilities must be in [0, 1]; they reach from {low:g} to {high:g}. Are they logits?")
    if probabilities.ndim == 2:
        sums = probabilities.sum(axis=1, dtype=np.float64)
        worst = int(np.argmax(np.abs(sums - 1)))
        if abs(sums[worst] - 1) > _SUM_TOLERANCE:
            raise ValueError(f"probabilities must sum to one in each row; row {worst} sums to {sums[worst]:g}")


def _check_labels(labels: np.ndarray, num_classes: int) -> None:
    is_class = np.isin(labels, np.arange(num_classes))
    if not np.all(is_class):
        wrong = np.unique(labels[~is_class])[:5].tolist()
        raise ValueError(f"labels must be class indices from 0 to {num_classes - 1}; they contain {wrong}")
