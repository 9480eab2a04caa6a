"""`cavity reproduce pvi-adult`: PVI meets the pooled posterior on Adult within the rounds that are asked."""

import numpy as np
import pytest

from cavity_experiments import pvi_adult, runner
from tests.marks import exhaustive, needs_data


def test_the_thresholds():
    assert {case.check: (case.label, case.bar) for case in pvi_adult.CASES} == {
        "core-3a": ("synchronous, split A", "< 1e-2 within 3 rounds"),
        "core-3b": ("synchronous, split B", "< 1e-2 within 10 rounds"),
        "core-3c": ("sequential, split A", "< 1e-2 within 2 passes"),
        "core-3d": ("sequential, split B", "< 1e-2 within 4 passes"),
    }
    assert all(case.rounds >= case.within for case in pvi_adult.CASES)
    assert pvi_adult.SPLITS == {"A": (0.0, 0.0), "B": (0.7, -3.0)}


@exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_data
def test_all_four_runs_meet_the_pooled_posterior(tmp_path):
    result = runner.run("pvi-adult", pvi_adult.pvi_adult, directory=tmp_path)
    assert [(check.name[:7], check.holds) for check in result.checks] == [
        ("core-3a", True),
        ("core-3b", True),
        ("core-3c", True),
        ("core-3d", True),
    ]
    assert result.figures == ("kl.png",)
    # table 2 of the paper: sizes and shares of positive labels
    small = {row["split"]: (row["small_rows"], round(row["small_positive"], 2)) for row in result.results["splits"]}
    large = {row["split"]: (row["large_rows"], round(row["large_positive"], 2)) for row in result.results["splits"]}
    assert small == {"A": (3907, 0.24), "B": (1172, 0.96)}
    assert large == {"A": (3907, 0.24), "B": (6642, 0.11)}
    # once the posteriors agree, so do the predictions
    scores = {(row["split"], row["schedule"]): row for row in result.results["scores"]}
    for split in ("A", "B"):
        pooled = scores[split, "pooled"]
        assert 0.14 < pooled["test_error"] < 0.16
        for schedule in ("synchronous", "sequential"):
            found = scores[split, schedule]
            np.testing.assert_allclose(found["test_log_likelihood"], pooled["test_log_likelihood"], atol=1e-4)
            assert abs(found["test_error"] - pooled["test_error"]) < 1e-3
