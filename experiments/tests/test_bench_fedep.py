"""`cavity bench fedep`: its quick form runs and says what it measured."""

import json

import numpy as np
import pytest

from cavity_experiments.bench_fedep import EXPECTED, made_images


@pytest.mark.slow
@pytest.mark.usefixtures("quick_to_compile")
def test_the_quick_form(command, tmp_path):
    code, out, err = command("bench", "fedep", "--quick", "--json", "--output", str(tmp_path))
    assert code == 0, err
    report = json.loads(out)
    rows = report["results"]["rounds"]
    assert [row["method"] for row in rows] == ["FedAvg", *EXPECTED]
    assert rows[0]["ratio"] == 1
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in rows)
    assert len(report["checks"]) == len(EXPECTED)
    assert all(check["holds"] is None for check in report["checks"])


def test_expected_ratios_count_passes():
    """Ten epochs of the chain; five more passes for L, five by five for V."""
    assert {"FedEP (L)": 1.5, "FedEP (V)": 3.5}.items() <= EXPECTED.items()
    assert EXPECTED["FedEP (I)"] == EXPECTED["FedEP (M)"] == EXPECTED["FedSEP (I)"] == pytest.approx(1)


def test_made_images_can_be_distinguished():
    x, y = made_images(0, 200, (8, 8, 1))
    assert x.shape == (200, 8, 8, 1)
    assert x.min() >= 0
    assert x.max() <= 1
    means = np.stack([x[y == label].mean(axis=0).ravel() for label in range(10)])
    nearest = np.argmin(((x.reshape(200, 1, -1) - means) ** 2).sum(axis=2), axis=1)
    assert (nearest == y).mean() > 0.9
