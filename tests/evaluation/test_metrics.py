"""Metrics against hand computations and scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from cavity.evaluation import metrics
from tests.marks import thorough

ALL = [metrics.log_likelihood, metrics.error_rate, metrics.brier, metrics.expected_calibration_error]

# Five examples in bins of width 0.2; the predicted classes are 0, 1, 2, 0, 1, of which the second is wrong.
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.25, 0.25, 0.5], [0.75, 0.15, 0.1], [0.0, 1.0, 0.0]])
LABELS = np.array([0, 2, 2, 0, 1])


def random_problem(seed, num_classes, num_examples=40):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(num_classes), size=num_examples)
    labels = rng.integers(num_classes, size=num_examples)
    labels[:num_classes] = np.arange(num_classes)
    return probabilities, labels


def test_by_hand():
    likelihood = (np.log(0.7) + np.log(0.05) + np.log(0.5) + np.log(0.75) + np.log(1.0)) / 5
    np.testing.assert_allclose(metrics.log_likelihood(PROBABILITIES, LABELS), likelihood, rtol=1e-5)
    np.testing.assert_allclose(metrics.error_rate(PROBABILITIES, LABELS), 0.2, rtol=1e-6)
    squares = [
        0.09 + 0.04 + 0.01,
        0.0025 + 0.81 + 0.9025,
        0.0625 + 0.0625 + 0.25,
        0.0625 + 0.0225 + 0.01,
        0.0,
    ]
    np.testing.assert_allclose(metrics.brier(PROBABILITIES, LABELS), np.sum(squares) / 5, rtol=1e-5)


def test_calibration_in_bins_of_equal_width_by_hand():
    # Bin (0.4, 0.6] has the confidence 0.5, bin (0.6, 0.8] has 0.7 and 0.75, bin (0.8, 1] has 0.9 and 1.
    confidence, accuracy, count = metrics.reliability(PROBABILITIES, LABELS, num_bins=5)
    assert count.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_allclose(confidence, [np.nan, np.nan, 0.5, 0.725, 0.95], rtol=1e-6)
    np.testing.assert_allclose(accuracy, [np.nan, np.nan, 1.0, 1.0, 0.5], rtol=1e-6)
    expected = (1 * 0.5 + 2 * 0.275 + 2 * 0.45) / 5
    np.testing.assert_allclose(
        metrics.expected_calibration_error(PROBABILITIES, LABELS, num_bins=5), expected, rtol=1e-6
    )


def test_calibration_in_bins_of_equal_count_by_hand():
    # In order of confidence: 0.5 right, 0.7 right | 0.75 right, 0.9 wrong, 1.0 right.
    confidence, accuracy, count = metrics.reliability(PROBABILITIES, LABELS, num_bins=2, equal_count=True)
    assert count.tolist() == [2, 3]
    np.testing.assert_allclose(confidence, [0.6, 2.65 / 3], rtol=1e-6)
    np.testing.assert_allclose(accuracy, [1.0, 2 / 3], rtol=1e-6)
    expected = (2 * 0.4 + 3 * (2.65 / 3 - 2 / 3)) / 5
    ece = metrics.expected_calibration_error(PROBABILITIES, LABELS, num_bins=2, equal_count=True)
    np.testing.assert_allclose(ece, expected, rtol=1e-5)


def test_binary_confidence_is_that_of_the_predicted_class():
    # p = 0.1 is a prediction of class 0 with confidence 0.9, here right; p = 0.6 is wrong.
    confidence, accuracy, count = metrics.reliability(np.array([0.1, 0.6]), np.array([0, 0]), num_bins=10)
    assert count.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 1, 0]
    np.testing.assert_allclose(confidence[jnp.array([5, 8])], [0.6, 0.9], rtol=1e-6)
    assert accuracy[jnp.array([5, 8])].tolist() == [0.0, 1.0]


# Predicted risks in order, and outcomes: 0.1 no, 0.2 no, 0.25 yes | 0.6 yes, 0.7 no, 0.9 yes.
RISKS = np.array([0.6, 0.1, 0.9, 0.25, 0.2, 0.7])
OUTCOMES = np.array([1, 0, 1, 1, 0, 0])


@pytest.mark.parametrize(("equal_count", "num_bins", "predicted", "observed", "expected"), [
    (True, 2, [0.55 / 3, 2.2 / 3], [1 / 3, 2 / 3], (3 * 0.15 + 3 * 0.2 / 3) / 6),
    (False, 4, [0.55 / 3, np.nan, 0.65, 0.9], [1 / 3, np.nan, 0.5, 1.0], (3 * 0.15 + 2 * 0.15 + 0.1) / 6),
])  # fmt: skip
def test_risk_against_observed_share_by_hand(equal_count, num_bins, predicted, observed, expected):
    """The bins are of the risk itself: 0.1 is a low risk, not a confident prediction."""
    found = metrics.reliability(RISKS, OUTCOMES, num_bins, equal_count, of_class=1)
    np.testing.assert_allclose(found[0], predicted, rtol=1e-5)
    np.testing.assert_allclose(found[1], observed, rtol=1e-5)
    error = metrics.expected_calibration_error(RISKS, OUTCOMES, num_bins, equal_count, of_class=1)
    np.testing.assert_allclose(error, expected, rtol=1e-5)
    of_the_other = metrics.expected_calibration_error(RISKS, OUTCOMES, 1, equal_count, of_class=0)
    np.testing.assert_allclose(of_the_other, abs(metrics.calibration_in_the_large(RISKS, OUTCOMES)), rtol=1e-5)


def test_calibration_in_the_large_by_hand():
    np.testing.assert_allclose(metrics.calibration_in_the_large(RISKS, OUTCOMES), 2.75 / 6 - 3 / 6, rtol=1e-5)
    both = np.column_stack([1 - RISKS, RISKS])
    np.testing.assert_allclose(metrics.calibration_in_the_large(both, OUTCOMES), 2.75 / 6 - 3 / 6, rtol=1e-5)


def test_area_under_the_curve_by_hand():
    # Of the nine pairs of a yes and a no, 0.6, 0.25 > 0.1, 0.2 and 0.9 > all three: seven are in order.
    np.testing.assert_allclose(metrics.auc(RISKS, OUTCOMES), 7 / 9, rtol=1e-6)
    np.testing.assert_allclose(metrics.auc(np.full(6, 0.3), OUTCOMES), 0.5, rtol=1e-6)


def test_scikit_learn_agrees_on_the_area_with_ties():
    rng = np.random.default_rng(5)
    p, labels = rng.integers(0, 8, 60) / 8, rng.integers(0, 2, 60)
    np.testing.assert_allclose(metrics.auc(p, labels), roc_auc_score(labels, p), rtol=1e-6)
    np.testing.assert_allclose(metrics.auc(np.column_stack([1 - p, p]), labels), roc_auc_score(labels, p), rtol=1e-6)


def test_the_area_needs_two_classes_with_examples():
    with pytest.raises(ValueError, match="both classes; all are of class 1"):
        metrics.auc(np.array([0.2, 0.4]), np.array([1, 1]))
    for metric in (metrics.auc, metrics.calibration_in_the_large):
        with pytest.raises(ValueError, match="two classes, not 3"):
            metric(PROBABILITIES, LABELS)
    assert np.isnan(jax.jit(metrics.auc)(np.array([0.2, 0.4]), np.array([1, 1])))


@pytest.mark.parametrize("metric", [metrics.auc, metrics.calibration_in_the_large])
def test_two_classes_inside_jit(metric):
    compiled = jax.jit(metric)
    np.testing.assert_allclose(compiled(RISKS, OUTCOMES), metric(RISKS, OUTCOMES), rtol=1e-6)
    assert np.isnan(compiled(np.where(RISKS == 0.2, np.nan, RISKS), OUTCOMES))
    assert np.isnan(compiled(RISKS, np.where(RISKS == 0.2, 2, OUTCOMES)))
    with pytest.raises(ValueError, match="NaN"):
        metric(np.where(RISKS == 0.2, np.nan, RISKS), OUTCOMES)


def test_a_class_that_is_none_has_no_risk():
    with pytest.raises(ValueError, match="from 0 to 1; it is 2"):
        metrics.reliability(RISKS, OUTCOMES, of_class=2)


@pytest.mark.parametrize("num_bins", [3, 5, 15])
def test_an_edge_belongs_to_the_bin_below(num_bins):
    edges = np.arange(num_bins // 2 + 1, num_bins + 1) / num_bins
    _, _, count = metrics.reliability(edges, np.ones(len(edges), dtype=int), num_bins)
    assert count.tolist() == [0] * (num_bins // 2) + [1] * len(edges)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 4]))
def test_scikit_learn_agrees(seed, num_classes):
    probabilities, labels = random_problem(seed, num_classes)
    np.testing.assert_allclose(
        metrics.log_likelihood(probabilities, labels), -log_loss(labels, probabilities), rtol=1e-4
    )
    np.testing.assert_allclose(
        metrics.error_rate(probabilities, labels),
        1 - accuracy_score(labels, probabilities.argmax(axis=1)),
        atol=1e-6,
    )
    one_hot = np.eye(num_classes)[labels]
    by_class = [brier_score_loss(one_hot[:, k], probabilities[:, k]) for k in range(num_classes)]
    np.testing.assert_allclose(metrics.brier(probabilities, labels), np.sum(by_class), rtol=1e-4)


def test_scikit_learn_agrees_on_two_classes():
    probabilities, labels = random_problem(0, 2)
    p = probabilities[:, 1]
    np.testing.assert_allclose(metrics.log_likelihood(p, labels), -log_loss(labels, p), rtol=1e-5)
    np.testing.assert_allclose(metrics.brier(p, labels), brier_score_loss(labels, p), rtol=1e-5)
    np.testing.assert_allclose(metrics.brier(probabilities, labels), 2 * brier_score_loss(labels, p), rtol=1e-5)
    for metric in (metrics.log_likelihood, metrics.error_rate, metrics.expected_calibration_error):
        np.testing.assert_allclose(metric(p, labels), metric(probabilities, labels), rtol=1e-5)


@pytest.mark.parametrize("metric", ALL)
def test_means_not_sums(metric):
    probabilities, labels = random_problem(1, 3)
    twice = metric(np.tile(probabilities, (2, 1)), np.tile(labels, 2))
    np.testing.assert_allclose(twice, metric(probabilities, labels), rtol=1e-5)


@thorough
@pytest.mark.parametrize("equal_count", [False, True])
def test_counts_add_up_and_one_bin_is_the_overall_gap(equal_count):
    probabilities, labels = random_problem(2, 3, num_examples=41)
    count = metrics.reliability(probabilities, labels, 15, equal_count)[2]
    assert count.sum() == 41
    if equal_count:
        assert np.ptp(np.asarray(count)) == 1
    gap = abs(np.mean(probabilities.max(axis=1)) - (1 - metrics.error_rate(probabilities, labels)))
    ece = metrics.expected_calibration_error(probabilities, labels, 1, equal_count)
    np.testing.assert_allclose(ece, gap, rtol=1e-4)
    few = metrics.expected_calibration_error(probabilities[:4], labels[:4], 15, equal_count)
    assert np.isfinite(few)


def test_calibrated_predictions_have_a_small_error():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=20_000)
    labels = rng.uniform(size=20_000) < p
    # Each of 15 bins has about 2,700 examples at most, so a gap of about sqrt(0.2 / 2700) = 0.009.
    assert metrics.expected_calibration_error(p, labels) < 0.02
    assert metrics.expected_calibration_error(p, ~labels) > 0.3


def test_a_true_class_of_probability_zero_is_minus_infinity():
    assert metrics.log_likelihood(np.array([[1.0, 0.0]]), np.array([1])) == -np.inf
    assert metrics.log_likelihood(np.array([1.0 + 1e-6]), np.array([0])) == -np.inf


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([[0.5, np.nan], [0.5, 0.5]], [0, 0], "1 NaN among 4"),
        ([np.nan, 0.5], [0, 1], "1 NaN among 2"),
        ([[2.0, -1.0]], [0], "in \\[0, 1\\]"),
        ([1.5], [0], "in \\[0, 1\\]"),
        ([[0.5, 0.3]], [0], "row 0 sums to 0.8"),
        ([[0.5, 0.5]], [2], "from 0 to 1; they contain \\[2\\]"),
        ([0.5, 0.5], [-1, 1], "they contain \\[-1\\]"),
        ([0.5, 0.5], [0.0, np.nan], "they contain \\[nan\\]"),
        ([0.5, 0.5], [0.0, 0.5], "they contain \\[0.5\\]"),
        ([[0.5, 0.5]], [0, 1], "shapes are"),
        ([[[0.5, 0.5]]], [[0]], "shapes are"),
        ([[1.0]], [0], "two classes"),
        ([], [], "at least one example"),
    ],
)
def test_what_is_wrong_is_an_error(metric, probabilities, labels, message):
    with pytest.raises(ValueError, match=message):
        metric(np.array(probabilities), np.array(labels))


@pytest.mark.parametrize("metric", ALL)
def test_inside_jit(metric):
    probabilities, labels = random_problem(3, 3)
    probabilities = probabilities.astype(np.float32)
    compiled = jax.jit(metric)
    np.testing.assert_allclose(compiled(probabilities, labels), metric(probabilities, labels), rtol=1e-5)
    bad = probabilities.copy()
    bad[7, 1] = np.nan
    assert np.isnan(compiled(bad, labels))
    for no_class in (-1, 3):
        assert np.isnan(compiled(probabilities, np.where(np.arange(40) == 7, no_class, labels)))
    with pytest.raises(ValueError, match="integers or booleans"):
        compiled(probabilities, labels.astype(np.float32))


def test_inside_jit_equal_counts():
    probabilities, labels = random_problem(4, 3)
    compiled = jax.jit(lambda p, y: metrics.expected_calibration_error(p, y, 4, equal_count=True))
    eager = metrics.expected_calibration_error(probabilities, labels, 4, equal_count=True)
    np.testing.assert_allclose(compiled(probabilities, labels), eager, rtol=1e-5)
    probabilities[0] = np.nan
    assert np.isnan(compiled(probabilities, labels))
    confidence, accuracy, _ = jax.jit(lambda p, y: metrics.reliability(p, y, 4))(probabilities, labels)
    assert np.all(np.isnan(confidence))
    assert np.all(np.isnan(accuracy))


def test_num_bins_must_be_positive():
    with pytest.raises(ValueError, match="num_bins"):
        metrics.expected_calibration_error(PROBABILITIES, LABELS, num_bins=0)
