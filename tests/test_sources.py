"""The real data sets are what their publishers say, and what cannot be had says so."""

import csv
import gzip
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from cavity.data import partition, sources

needs_data = pytest.mark.skipif(
    sources.data_directory() is None, reason="CAVITY_DATA is not set: the real data sets are not here"
)


@pytest.fixture(scope="module")
def adult():
    return sources.adult()


@pytest.fixture(scope="module")
def mnist():
    return sources.mnist()


@needs_data
def test_adult(adult):
    assert adult.x.shape == (48_842, 108)
    assert adult.x.dtype == np.float64
    assert adult.y.shape == (48_842,)
    assert set(np.unique(adult.y)) == {0, 1}
    assert len(adult.columns) == len(set(adult.columns)) == 108
    assert adult.y[adult.train].sum() == 7_841
    assert adult.y[adult.test].sum() == 3_846
    np.testing.assert_array_equal(np.concatenate([adult.train, adult.test]), np.arange(48_842))


@needs_data
def test_adult_features(adult):
    numeric, indicators = adult.x[:, :6], adult.x[:, 6:]
    np.testing.assert_allclose(numeric.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(numeric.std(axis=0), 1, rtol=1e-10)
    assert set(np.unique(indicators)) == {0, 1}
    # One level of each of eight categorical columns; no intercept.
    np.testing.assert_array_equal(indicators.sum(axis=1), 8)
    assert not np.any(np.ptp(adult.x, axis=0) == 0)
    missing = [adult.columns.index(f"{name}=?") for name in ("workclass", "occupation", "native_country")]
    assert np.sum(adult.x[:, missing].max(axis=1)) == 2_399 + 1_221


@needs_data
def test_adult_rows_keep_their_place(adult):
    # The first rows of the two files: 39, State-gov, Bachelors, ... and 25, Private, 11th, ...
    for row, levels in (
        (0, ("workclass=State-gov", "education=Bachelors")),
        (32_561, ("education=11th", "race=Black")),
    ):
        assert all(adult.x[row, adult.columns.index(level)] == 1 for level in levels)
    age = adult.x[:, adult.columns.index("age")]
    # The oldest are 90 and the youngest 17, so the ages of the first rows can be read off the scale.
    years = 17 + (age - age.min()) / np.ptp(age) * 73
    np.testing.assert_allclose(years[[0, 32_561]], [39, 25])
    # Income rises with age.
    assert np.corrcoef(years, adult.y)[0, 1] > 0.2


@needs_data
def test_adult_is_standardised_by_the_training_rows(adult):
    rows = np.random.default_rng(0).permutation(48_842)[:1000]
    table = sources.adult(training_rows=rows)
    np.testing.assert_allclose(table.x[rows, :6].mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(table.x[rows, :6].std(axis=0), 1, rtol=1e-10)
    assert np.abs(table.x[:, :6].mean(axis=0)).max() > 1e-3
    np.testing.assert_array_equal(table.x[:, 6:], adult.x[:, 6:])
    assert table.columns == adult.columns


@needs_data
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros(48_842, dtype=int), "repeats rows.* mask of booleans"),
        (np.arange(48_842) == 5, "has 1 rows"),
        ([0, 1], "constant"),
    ],
)
def test_adult_refuses_training_rows(rows, message):
    with pytest.raises(ValueError, match=message):
        sources.adult(training_rows=np.asarray(rows))


@needs_data
def test_adult_splits_as_in_table_2(adult):
    rng = np.random.default_rng(0)
    training = rng.permutation(len(adult.y))[: int(0.8 * len(adult.y))]
    labels = adult.y[training]
    parts = partition.size_and_label_skew(rng, labels, 10, beta=0.7, kappa=-3.0)
    assert [len(rows) for rows in parts.values()] == [1172] * 5 + [6642] * 5
    share = [labels[rows].mean() for rows in parts.values()]
    # The share of positive labels in a random 80 % has standard deviation 0.001, eta_small four times that.
    np.testing.assert_allclose(share[:5], 0.959, atol=0.012)
    np.testing.assert_allclose(np.mean(share[5:]), 0.111, atol=0.006)


@needs_data
def test_mnist(mnist):
    assert mnist.x.shape == (70_000, 784)
    assert mnist.x.dtype == np.float32
    assert mnist.x.min() == 0
    assert mnist.x.max() == 1
    assert len(mnist.columns) == 784
    assert len(mnist.train) == 60_000
    assert mnist.train[-1] == 59_999
    assert mnist.test[0] == 60_000
    # The published mean of the training pixels, and the first labels of either part.
    assert abs(mnist.x[:60_000].mean(dtype=np.float64) - 0.1307) < 1e-4
    assert mnist.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.y[60_000:60_003].tolist() == [7, 2, 1]


@needs_data
def test_mnist_images_are_upright(mnist):
    # A one is a vertical stroke: its ink spreads over more rows than columns.
    ones = mnist.x[mnist.y == 1].mean(axis=0).reshape(28, 28)
    assert np.sum(ones.sum(axis=1) > 1) > 1.5 * np.sum(ones.sum(axis=0) > 1)


def copy_of(tmp_path, monkeypatch, name):
    shutil.copytree(sources.data_directory() / name, tmp_path / name)
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    return tmp_path / name


@needs_data
def test_wrong_adult_files(tmp_path, monkeypatch):
    folder = copy_of(tmp_path, monkeypatch, "adult")
    train, test = folder / "adult_train.csv.gz", folder / "adult_test.csv.gz"
    content = gzip.decompress(train.read_bytes())

    train.write_bytes(gzip.compress(content[: content.rindex(b"\n", 0, -1) + 1], 1))
    with pytest.raises(ValueError, match=r"adult_train.csv.gz is not .* number of rows is 32560, not 32561"):
        sources.adult()
    train.write_bytes(gzip.compress(content.replace(b">50K", b"<=50K", 1), 1))
    with pytest.raises(ValueError, match="incomes above 50K is 7840, not 7841"):
        sources.adult()
    train.write_bytes(gzip.compress(content.replace(b"age", b"years", 1), 1))
    with pytest.raises(ValueError, match="set of columns"):
        sources.adult()
    train.write_bytes(content)
    with pytest.raises(ValueError, match="not a complete gzip file"):
        sources.adult()
    train.write_bytes(test.read_bytes())
    with pytest.raises(ValueError, match="is 16281, not 32561"):
        sources.adult()


@needs_data
def test_wrong_mnist_files(tmp_path, monkeypatch):
    folder = copy_of(tmp_path, monkeypatch, "mnist")
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(labels.read_bytes())
    labels.write_bytes(gzip.compress(content[:-1]))
    with pytest.raises(ValueError, match="t10k-labels.* number of bytes is 10007, not 10008"):
        sources.mnist()
    labels.write_bytes(gzip.compress(content[:-1] + b"\x00"))
    with pytest.raises(ValueError, match="count of each digit in the test part"):
        sources.mnist()
    labels.write_bytes((folder / "train-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(ValueError, match="header"):
        sources.mnist()


@pytest.mark.parametrize("load", [sources.adult, sources.mnist])
def test_a_missing_file_names_the_folder(load, tmp_path, monkeypatch):
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(sources.DataUnavailable, match="CAVITY_DATA") as error:
        load()
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("load", [sources.adult, sources.mnist])
def test_no_folder_and_no_network(load, monkeypatch):
    def no_network(*_, **__):
        raise URLError("name or service not known")

    monkeypatch.delenv("CAVITY_DATA", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", no_network)
    with pytest.raises(sources.DataUnavailable, match="name or service not known.*CAVITY_DATA"):
        load()


def test_no_folder_and_no_scikit_learn(monkeypatch):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(sources.DataUnavailable, match=r"not installed.*pip install 'cavity\[data\]'"):
        sources.adult()


def adult_frame(directory, first, second):
    """Both files as OpenML has them: hyphens in names, `class` for income, NaN for a missing value."""
    import pandas as pd

    def rows(part):
        with gzip.open(directory / "adult" / f"adult_{part}.csv.gz", "rt") as file:
            return list(csv.reader(file))

    header = [name.replace("_", "-") for name in rows(first)[0][:-1]] + ["class"]
    frame = pd.DataFrame(rows(first)[1:] + rows(second)[1:], columns=header).replace("?", np.nan)
    for name in ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"):
        frame[name] = frame[name].astype(int)
    return frame.astype(dict.fromkeys(("workclass", "occupation", "native-country", "class"), "category"))


@needs_data
@pytest.mark.parametrize("parts", [("train", "test"), ("test", "train")])
def test_openml_gives_the_same_adult(parts, adult, monkeypatch):
    frame = adult_frame(sources.data_directory(), *parts)
    monkeypatch.delenv("CAVITY_DATA")
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *_, **__: SimpleNamespace(frame=frame))
    table = sources.adult()
    assert table.columns == adult.columns
    np.testing.assert_array_equal(table.x, adult.x)
    np.testing.assert_array_equal(table.y, adult.y)


@needs_data
def test_openml_gives_the_same_mnist(mnist, monkeypatch):
    images = np.zeros((70_000, 784), dtype=np.uint8)
    images[::100] = np.rint(mnist.x[::100] * 255)
    bunch = SimpleNamespace(data=images, target=mnist.y.astype(str).astype(object))
    monkeypatch.delenv("CAVITY_DATA")
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *_, **__: bunch)
    table = sources.mnist()
    np.testing.assert_array_equal(table.x[::100], mnist.x[::100])
    np.testing.assert_array_equal(table.y, mnist.y)


def test_data_directory(monkeypatch):
    monkeypatch.setenv("CAVITY_DATA", "some/folder")
    assert sources.data_directory() == Path("some/folder")
    monkeypatch.setenv("CAVITY_DATA", "")
    assert sources.data_directory() is None
