"""The data of the Gaussian process experiments: standard splits, no leakage, and who has which rows."""

import itertools
import re

import numpy as np
import pytest

from cavity.errors import DataError
from cavity_experiments import gp_data, sources
from tests.marks import needs_data

# mean and standard deviation of all targets, and rows, features, splits, training rows: the files' own README
UCI = {
    "boston": (22.53, 9.188, 506, 13, 20, 455),
    "concrete": (35.82, 16.7, 1_030, 8, 20, 927),
    "energy": (22.31, 10.08, 768, 8, 20, 691),
    "kin8nm": (0.7143, 0.2636, 8_192, 8, 20, 7_373),
    "naval": (0.975, 0.01472, 11_934, 16, 20, 10_741),
    "power": (454.4, 17.07, 9_568, 4, 20, 8_611),
    "protein": (7.749, 6.118, 45_730, 9, 5, 41_157),
    "wine_red": (5.636, 0.8073, 1_599, 11, 20, 1_439),
    "yacht": (10.5, 15.14, 308, 6, 20, 277),
}


def table(x, y, num_train=2):
    x, y, rows = np.array(x, float), np.array(y, float), np.arange(len(y))
    columns = tuple("abc"[: x.shape[1]])
    return sources.Table("toy", x, y, columns, train=rows[:num_train], test=rows[num_train:])


@needs_data
@pytest.mark.parametrize("name", UCI)
def test_uci_regression(name):
    mean, sd, num_rows, num_features, num_splits, num_train = UCI[name]
    assert sources.uci_splits(name) == num_splits
    first, last = sources.uci_regression(name, 0), sources.uci_regression(name, num_splits - 1)
    assert first.x.shape == (num_rows, num_features) == (num_rows, len(set(first.columns)))
    np.testing.assert_allclose([first.y.mean(), first.y.std()], [mean, sd], rtol=1e-3)
    for split in (first, last):
        assert len(split.train) == num_train
        np.testing.assert_array_equal(np.sort(np.r_[split.train, split.test]), np.arange(num_rows))
    assert not np.array_equal(first.test, last.test)
    with pytest.raises(ValueError, match=f"0 to {num_splits - 1}; there is no split {num_splits}"):
        sources.uci_regression(name, num_splits)


def test_there_are_nine_sets():
    assert set(sources.UCI_REGRESSION) == set(UCI)
    with pytest.raises(ValueError, match="no regression set 'iris'; there are: boston"):
        sources.uci_regression("iris", 0)


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (lambda: sources.uci_regression("yacht", 0), "uci_regression/yacht.npz"),
        (sources.us_stations, "weather_stations/us_gsod_20180501.csv.gz"),
    ],
)
def test_without_a_folder_they_say_what_is_missing(load, file, monkeypatch, tmp_path):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    with pytest.raises(sources.DataUnavailable, match=f"CAVITY_DATA is not set.*{file}"):
        load()
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(sources.DataUnavailable, match=re.escape(str(tmp_path / file))) as error:
        load()
    assert "OpenML" not in str(error.value)


def write_yacht(folder, monkeypatch, **changed):
    """A file in the shape of the yacht set, with every split the same."""
    rows = np.tile(np.arange(308, dtype=np.uint16), (20, 1))
    arrays = {"X": np.ones((308, 6)), "y": np.full(308, 0.11), "train_idx": rows[:, :277], "test_idx": rows[:, 277:]}
    (folder / "uci_regression").mkdir()
    np.savez(folder / "uci_regression" / "yacht.npz", **(arrays | changed))
    monkeypatch.setenv("CAVITY_DATA", str(folder))


def test_small_indices_do_not_overflow(tmp_path, monkeypatch):
    write_yacht(tmp_path, monkeypatch)
    found = sources.uci_regression("yacht", 3)
    assert found.train.dtype == np.int64
    assert found.test.tolist() == list(range(277, 308))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.zeros(308)}, r"the target of the first row is 0\.0, not 0\.11"),
        ({"X": np.ones((308, 5))}, "the shape of X"),
        ({"test_idx": np.zeros((20, 31), np.uint16)}, "whether split 3 has every row once is False"),
    ],
)
def test_a_wrong_file_is_reported(changed, message, tmp_path, monkeypatch):
    write_yacht(tmp_path, monkeypatch, **changed)
    with pytest.raises(DataError, match=message):
        sources.uci_regression("yacht", 3)


@needs_data
@pytest.mark.parametrize("name", ["yacht", "naval"])
def test_training_rows_alone_standardise(name):
    raw = sources.uci_regression(name, 1)
    (x, y), (x_test, y_test), scaling = sources.standardised(raw)
    varies = scaling.x_sd > 0
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(x[:, varies].std(axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-9)
    assert abs(y_test.mean()) > 1e-3
    np.testing.assert_allclose(scaling.raw_targets(y_test), raw.y[raw.test])
    np.testing.assert_allclose(scaling.raw_inputs(x_test), raw.x[raw.test])
    # two of naval's columns are constant, and the computed deviation of one of them is 2e-13
    assert np.flatnonzero(~varies).tolist() == ([8, 11] if name == "naval" else [])
    assert not np.any(x[:, ~varies])
    assert not np.any(x_test[:, ~varies])


def test_a_constant_input_is_zero_even_where_a_test_row_differs():
    # the mean of three times 0.1 is not 0.1, so the computed deviation is not 0
    x = [[0.1, 1.0], [0.1, 2.0], [0.1, 6.0], [5.0, 3.0]]
    assert np.std([0.1, 0.1, 0.1]) > 0
    (inputs, _), (test_inputs, _), scaling = sources.standardised(table(x, [1, 2, 3, 4], num_train=3))
    assert inputs[:, 0].tolist() == [0, 0, 0]
    assert test_inputs.tolist() == [[0.0, 0.0]]
    assert scaling.inputs(np.array([[9.0, 3.0]])).tolist() == [[0.0, 0.0]]


def test_log_likelihoods_in_raw_units():
    """The same normal prediction, in both units."""
    from scipy.stats import norm

    raw = table([[1], [2], [3], [4]], [10, 50, 25, 70])
    _, (_, z), scaling = sources.standardised(raw)
    mean, sd = 0.3, 0.8
    standard = norm.logpdf(z, mean, sd)
    expected = norm.logpdf(raw.y[raw.test], scaling.raw_targets(mean), scaling.y_sd * sd)
    np.testing.assert_allclose(scaling.raw_log_likelihood(standard), expected)
    np.testing.assert_allclose(scaling.raw_log_likelihood(standard.mean()), expected.mean())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (table([[1], [2], [3]], [5, 5, 6]), "training targets of toy are all 5"),
        (table([[1], [np.nan], [3]], [1, 2, 3]), "toy has 1 missing"),
        (sources.Table("toy", np.eye(2), np.ones(2), ("a", "b")), "toy has no training and test part"),
    ],
)
def test_standardised_refuses(bad, message):
    with pytest.raises(ValueError, match=message):
        sources.standardised(bad)


@needs_data
def test_us_stations():
    found = sources.us_stations()
    assert found.x.shape == (2_133, 3)
    low, high = found.x.min(axis=0), found.x.max(axis=0)
    np.testing.assert_allclose(low, [-124.555, 25.483, -36.0])
    np.testing.assert_allclose(high, [-67.793, 49.318, 4113.3])
    assert (found.y.min(), found.y.max()) == (26.5, 81.7)  # degrees Fahrenheit
    np.testing.assert_array_equal(np.sort(np.r_[found.train, found.test]), np.arange(2_133))
    assert len(found.test) == pytest.approx(213, abs=15)


@needs_data
def test_no_station_is_on_both_sides():
    for split in (0, 1):
        found = sources.us_stations(split)
        train, test = ({tuple(place) for place in found.x[rows, :2]} for rows in (found.train, found.test))
        assert not train & test
        assert len(test) == 199
    assert not np.array_equal(sources.us_stations(0).test, found.test)
    np.testing.assert_array_equal(sources.us_stations(1).test, found.test)


@needs_data
def test_the_stations_clients_are_blocks_of_the_map():
    found = gp_data.stations()
    sizes = [len(y) for _, y in found.clients.values()]
    assert (len(sizes), sum(sizes) + len(found.test[1])) == (32, 2_133)
    assert min(sizes) >= 55
    assert max(sizes) <= 65
    # raw places and standardised inputs are the same rows
    for name, (x, _) in found.clients.items():
        np.testing.assert_allclose(found.scaling.raw_inputs(x)[:, :2], found.places[name])
    boxes = [(places.min(axis=0), places.max(axis=0)) for places in found.places.values()]
    overlaps = [
        np.all(low < other_high) and np.all(other_low < high)
        for i, (low, high) in enumerate(boxes)
        for other_low, other_high in boxes[:i]
    ]
    assert not any(overlaps)


@needs_data
def test_uci_clients():
    alike, unlike = gp_data.uci("power", 2), gp_data.uci("power", 2, homogeneous=False)
    for found in (alike, unlike):
        sizes = [len(y) for _, y in found.clients.values()]
        assert (len(sizes), sum(sizes), np.ptp(sizes)) == (10, 8_611, 1)
        assert len(found.test[1]) == 957

    def spread(found):
        """Of the clients' means, in standard deviations of a row."""
        return np.std([x.mean(axis=0) for x, _ in found.clients.values()], axis=0).max()

    assert spread(alike) < 0.1  # 1 / sqrt(861) = 0.03
    assert spread(unlike) > 0.7


def test_synthetic_is_five_stretches_with_tests_inside_and_between():
    found = gp_data.synthetic_1d(seed=0)
    assert len(found.clients) == 5
    ends = [(float(x.min()), float(x.max())) for x, _ in found.clients.values()]
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(ends))
    x, y = found.test
    assert x.shape == (231, 1)
    assert y.shape == found.function.shape == found.between.shape == (231,)
    # 31 of each stretch's points, ends included, at steps of 0.02
    assert np.sum(~found.between) == 5 * 31
    for low, high in ends:
        assert not np.any(found.between[(x[:, 0] >= low) & (x[:, 0] <= high)])
    again, other = gp_data.synthetic_1d(seed=0), gp_data.synthetic_1d(seed=1)
    np.testing.assert_array_equal(again.test[1], y)
    assert not np.allclose(other.test[1], y)


def test_synthetic_rows_and_tests_are_of_one_function_with_the_stated_noise():
    noise, squares = [], []
    for seed in range(20):
        found = gp_data.synthetic_1d(seed)
        x, y = (np.concatenate(both) for both in zip(*found.clients.values(), strict=True))
        noise += [found.test[1] - found.function, y - np.interp(x[:, 0], found.test[0][:, 0], found.function)]
        kernel = gp_data.SCALE**2 * np.exp(-0.5 * (x - x.T) ** 2 / gp_data.LENGTH_SCALE**2)
        squares.append(y @ np.linalg.solve(kernel + gp_data.NOISE_SD**2 * np.eye(100), y))
    # 6,620 draws: the deviation errs by 1 %
    assert np.std(np.concatenate(noise)) == pytest.approx(gp_data.NOISE_SD, rel=0.04)
    # y' (K + noise)^-1 y is chi squared, here with 2,000 degrees of freedom and standard deviation sqrt(4000) = 63
    assert abs(np.sum(squares) - 2_000) < 4 * 63
