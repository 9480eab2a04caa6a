"""The toy of FedEP against an independent EP in numpy, and against the derivation in its docstring."""

import numpy as np
import pytest

from cavity_experiments import fedep_toy as toy
from cavity_experiments import runner
from cavity_experiments.runner import Size
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def numpy_ep(precisions, means, num_rounds, identity=None):
    """Means after each synchronous round, and the factors' precisions at the end; scalars written out."""
    d, h, path = np.zeros((2, 2)), np.zeros((2, 2)), []
    for _ in range(num_rounds):
        new_d, new_h = np.zeros((2, 2)), np.zeros((2, 2))
        for k in range(2):
            (a, b), (_, c) = precisions[k]
            x, y = d[1 - k]  # the cavity among two clients is the other's factor
            determinant = (a + x) * (c + y) - b**2
            shift = precisions[k] @ means[k] + h[1 - k]
            mean = np.array([(c + y) * shift[0] - b * shift[1], (a + x) * shift[1] - b * shift[0]]) / determinant
            matched = determinant / np.array([c + y, a + x]) if identity is None else d[1 - k] + identity
            new_d[k], new_h[k] = matched - d[1 - k], matched * mean - h[1 - k]
        d, h = new_d, new_h
        path.append(h.sum(0) / d.sum(0))
    return np.array(path), d


@pytest.fixture(scope="module")
def drawn():
    return toy.draw_clients(np.random.default_rng(4), 20, toy.eigenvalues_near_one)


@pytest.fixture(scope="module")
def paths(drawn):
    return {name: np.asarray(toy.posterior_means(method, drawn[2], 30)) for name, method in toy.methods().items()}


@thorough
def test_all_draws_at_once_are_ep_one_by_one(drawn, paths):
    precisions, means, _ = drawn
    for i in range(20):
        for method, identity in ((toy.FEDEP, None), (toy.IDENTITY, 7.0)):
            expected, _ = numpy_ep(precisions[i], means[i], 30, identity)
            np.testing.assert_allclose(paths[method][i], expected, atol=1e-12)


@thorough
def test_one_shot_methods_are_what_they_are_called(drawn, paths):
    precisions, means, _ = drawn
    weights = 1 / np.diagonal(np.linalg.inv(precisions), axis1=-2, axis2=-1)
    fedpa = (weights * means).sum(1) / weights.sum(1)
    for round_ in (0, 29):
        np.testing.assert_allclose(paths[toy.FEDAVG][:, round_], means.mean(1), atol=1e-12)
        np.testing.assert_allclose(paths[toy.FEDPA][:, round_], fedpa, atol=1e-12)
        np.testing.assert_allclose(paths[toy.FULL][:, round_], toy.product_means(precisions, means), atol=1e-12)
    np.testing.assert_allclose(paths[toy.FEDEP][:, 0], fedpa, atol=1e-12)
    np.testing.assert_allclose(paths[toy.IDENTITY][:, 0], means.mean(1), atol=1e-12)


def test_rows_have_the_precision_of_the_normal_inverse_wishart():
    """E[P] = 7 Psi^-1 and E[mu mu'] = E[Sigma] / 0.2 = Psi / 4 / 0.2, within four standard errors."""
    psi = np.array([[1.5, 0.4], [0.4, 1.2]])
    precisions, means, data = toy.draw_clients(np.random.default_rng(0), 4000, lambda rng: psi)
    for values, expected in (
        (precisions.reshape(-1, 4), 7 * np.linalg.inv(psi)),
        (np.einsum("ikd,ike->ikde", means, means).reshape(-1, 4), psi / 4 / 0.2),
    ):
        error = values.std(0) / np.sqrt(len(values))
        assert (np.abs(values.mean(0) - expected.ravel()) < 4 * error).all()
    np.testing.assert_allclose(np.einsum("ikrd,ikr->ikd", *map(np.asarray, data.batch)),
                               np.einsum("ikde,ike->ikd", precisions, means), rtol=1e-9)  # fmt: skip


def test_ep_converges_at_the_derived_rate():
    """Two rounds shrink the error by the larger of |r| and |r'|, for clients that are narrow in one direction."""
    covariances = np.array([[[1.0, 0.997], [0.997, 1.0]], [[1.0, 0.99], [0.99, 1.0]]])
    precisions, means = np.linalg.inv(covariances), np.array([[0.0, 1.0], [1.0, -1.0]])
    path, ((x1, y1), (x2, y2)) = numpy_ep(precisions, means, 400)
    (a1, b1, c1), (a2, b2, c2) = ((p[0, 0], p[0, 1], p[1, 1]) for p in precisions)
    rate = max(b1 * b2 / ((c1 + y2) * (a2 + x1)), b1 * b2 / ((a1 + x2) * (c2 + y1)))
    assert 0.5 < rate < 1
    target = toy.product_means(precisions[None], means[None])[0]
    np.testing.assert_allclose(path[-1], target, atol=1e-9)
    errors = np.linalg.norm(path - target, axis=1)
    np.testing.assert_allclose((errors[60] / errors[20]) ** (1 / 20), rate, rtol=0.01)


@thorough
def test_the_command_writes_table_checks_and_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    result = runner.run("fedep-toy", toy.fedep_toy, directory=tmp_path, size=Size.QUICK)
    assert [check.name.split()[0] for check in result.checks] == [f"fedep-1{letter}" for letter in "abcde"]
    assert all(check.holds is None for check in result.checks)  # 50 draws judge nothing
    table = {row["method"]: row for row in result.results["distances"] if row["psi"] == next(iter(toy.SCALES))}
    assert table[toy.FEDEP]["mean"] < 1e-6
    assert table[toy.IDENTITY]["mean"] < 1e-3
    assert table[toy.FEDAVG]["mean"] > table[toy.FEDPA]["mean"] > 0.1
    assert table[toy.FULL]["largest"] < 1e-12
    assert set(result.figures) == {"estimates.png", "rounds.png"}
    assert all((tmp_path / name).stat().st_size > 10_000 for name in result.figures)
