"""The real data sets are what their publishers say, and what cannot be had says so."""

import csv
import gzip
import shutil
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from cavity.datasets import partition
from cavity_experiments import sources
from tests.marks import needs_data, thorough


@pytest.fixture(scope="module")
def adult():
    return sources.adult()


@pytest.fixture(scope="module")
def mnist():
    return sources.mnist()


@pytest.fixture(scope="module")
def fashion_mnist():
    return sources.fashion_mnist()


@pytest.fixture(scope="module")
def covertype():
    return sources.covertype()


@pytest.fixture(scope="module")
def heart_disease():
    return sources.heart_disease()


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
@thorough
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


@needs_data
@thorough
def test_fashion_mnist(fashion_mnist, mnist):
    assert fashion_mnist.name == "fashion_mnist"
    assert fashion_mnist.x.shape == (70_000, 784)
    assert fashion_mnist.x.dtype == np.float32
    assert fashion_mnist.x.min() == 0
    assert fashion_mnist.x.max() == 1
    assert fashion_mnist.columns == mnist.columns
    np.testing.assert_array_equal(fashion_mnist.train, mnist.train)
    np.testing.assert_array_equal(fashion_mnist.test, mnist.test)
    # The published mean and deviation of the training pixels, and the first labels of either part.
    assert abs(fashion_mnist.x[:60_000].mean(dtype=np.float64) - 0.2860) < 1e-4
    assert abs(fashion_mnist.x[:60_000].std(dtype=np.float64) - 0.3530) < 1e-4
    assert fashion_mnist.y[:5].tolist() == [9, 0, 0, 3, 0]
    assert fashion_mnist.y[60_000:60_003].tolist() == [9, 2, 1]
    assert np.bincount(fashion_mnist.y[:60_000]).tolist() == [6_000] * 10
    assert np.bincount(fashion_mnist.y[60_000:]).tolist() == [1_000] * 10


@needs_data
def test_fashion_mnist_images_are_upright(fashion_mnist):
    # Trousers are taller than wide, sneakers wider than tall.
    def shape(label):
        ink = fashion_mnist.x[fashion_mnist.y == label].mean(axis=0).reshape(28, 28)
        return np.sum(ink.sum(axis=1) > 2), np.sum(ink.sum(axis=0) > 2)

    rows, columns = shape(1)
    assert rows > 1.3 * columns
    rows, columns = shape(7)
    assert columns > 1.3 * rows


@needs_data
def test_covertype(covertype):
    assert covertype.x.shape == (581_012, 54)
    assert covertype.x.dtype == np.float64
    assert len(covertype.columns) == len(set(covertype.columns)) == 54
    assert set(np.unique(covertype.y)) == {0, 1}
    # Lodgepole pine, the commonest of the seven types.
    assert covertype.y.sum() == 283_301
    # The first rows of the file are aspen, aspen, lodgepole pine, lodgepole pine, aspen.
    assert covertype.y[:5].tolist() == [0, 0, 1, 1, 0]
    assert covertype.train is None
    assert covertype.test is None


@needs_data
def test_covertype_features_are_raw(covertype):
    # The lowest and the highest patch, in metres; the deepest below water and the highest above.
    elevation, vertical = (
        covertype.x[:, covertype.columns.index(name)] for name in ("Elevation", "Vertical_Distance_To_Hydrology")
    )
    assert (elevation.min(), elevation.max()) == (1_859, 3_858)
    assert (vertical.min(), vertical.max()) == (-173, 601)
    np.testing.assert_array_equal(covertype.x[0, :10], [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279])
    assert [covertype.columns[i] for i in np.flatnonzero(covertype.x[0, 10:]) + 10] == [
        "Wilderness_Area1",
        "Soil_Type29",
    ]
    indicators = covertype.x[:, 10:]
    assert set(np.unique(indicators)) == {0, 1}
    np.testing.assert_array_equal(indicators[:, :4].sum(axis=1), 1)
    np.testing.assert_array_equal(indicators[:, 4:].sum(axis=1), 1)
    # Of the four areas Neota lies highest, Cache la Poudre lowest.
    means = [elevation[indicators[:, i] == 1].mean() for i in range(4)]
    assert np.argmax(means) == 1
    assert np.argmin(means) == 3


@needs_data
def test_heart_disease(heart_disease):
    assert heart_disease.x.shape == (920, 13)
    assert heart_disease.x.dtype == np.float64
    assert " ".join(heart_disease.columns) == (
        "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal"
    )
    assert set(np.unique(heart_disease.y)) == {0, 1}
    clients = partition.by_column(heart_disease.hospital)
    assert {name: (len(rows), int(heart_disease.y[rows].sum())) for name, rows in clients.items()} == {
        "cleveland": (303, 139),
        "hungarian": (294, 106),
        "switzerland": (123, 115),
        "va_long_beach": (200, 149),
    }
    # The first patient of the Cleveland file, who was healthy, and the second, who was not.
    np.testing.assert_array_equal(heart_disease.x[0], [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6])
    assert heart_disease.y[:2].tolist() == [0, 1]


@needs_data
def test_heart_disease_leaves_missing_values_out(heart_disease):
    missing = {
        name: dict(zip(heart_disease.columns, np.isnan(heart_disease.x[rows]).sum(axis=0).tolist(), strict=True))
        for name, rows in partition.by_column(heart_disease.hospital).items()
    }
    assert sum(missing["cleveland"].values()) == missing["cleveland"]["ca"] + missing["cleveland"]["thal"] == 4 + 2
    assert [missing[name]["slope"] for name in sorted(missing)] == [0, 190, 17, 102]
    # Nobody's cholesterol was measured in Switzerland, nor that of 49 + 7 patients in Long Beach.
    assert [missing[name]["chol"] for name in sorted(missing)] == [0, 23, 123, 56]
    assert [missing[name]["trestbps"] for name in sorted(missing)] == [0, 1, 2, 57]
    positive = [heart_disease.columns.index(name) for name in ("age", "cp", "trestbps", "chol", "thalach", "thal")]
    assert np.nanmin(heart_disease.x[:, positive]) > 0
    # A zero that is a measurement stays: no vessel coloured, no depression of the curve, a woman.
    zero = dict(zip(heart_disease.columns, np.sum(heart_disease.x == 0, axis=0).tolist(), strict=True))
    assert (zero["ca"], zero["oldpeak"], zero["sex"]) == (181, 370, 194)


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
    with pytest.raises(ValueError, match="count of each class in the test part"):
        sources.mnist()
    labels.write_bytes((folder / "train-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(ValueError, match="header"):
        sources.mnist()


@needs_data
def test_mnist_is_no_fashion_mnist(tmp_path, monkeypatch):
    copy_of(tmp_path, monkeypatch, "mnist").rename(tmp_path / "fashion_mnist")
    with pytest.raises(ValueError, match="count of each class in the training part"):
        sources.fashion_mnist()


@needs_data
def test_wrong_covertype_files(tmp_path, monkeypatch):
    path = copy_of(tmp_path, monkeypatch, "covertype") / "covertype.npz"
    content = path.read_bytes()
    with np.load(path) as archive:
        arrays = dict(archive)

    def changed(name, row, value):
        array = arrays[name].copy()
        array[row] = value
        return arrays | {name: array}

    for wrong, message in (
        ({name: array for name, array in arrays.items() if name != "soil"}, "not a complete npz file.*soil"),
        (arrays | {"label": arrays["label"][1:]}, r"the shape of label is \(581011,\), not \(581012,\)"),
        (changed("label", 0, 2), "rows of each cover type"),
        (changed("wilderness", 0, 1), "rows of each wilderness area"),
        (changed("soil", 0, 40), r"the range of soil is \(0, 40\), not \(0, 39\)"),
        (changed("quant", 0, 0), "the quantities in the first row"),
        (changed("quant_names", 0, "Aspect"), "the list of quantities"),
    ):
        np.savez(path, **wrong)
        with pytest.raises(ValueError, match=message):
            sources.covertype()
    one_array = BytesIO()
    np.save(one_array, arrays["label"])
    for broken in (content[:-100], b"", b"no archive", one_array.getvalue()):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="not a complete npz file"):
            sources.covertype()


@needs_data
def test_wrong_heart_disease_files(tmp_path, monkeypatch):
    path = copy_of(tmp_path, monkeypatch, "heart_disease") / "heart_disease.csv.gz"
    content = gzip.decompress(path.read_bytes())
    first = b"cleveland,63,1,1,145,233,1,2,150,0,2.3,3,0,6,0"
    assert first in content
    for wrong, message in (
        (content.replace(b"chol", b"cholesterol"), "set of columns"),
        (content.replace(first + b"\n", b""), "number of rows is 919, not 920"),
        (content.replace(first, first[:-1] + b"1"), "diseased ones by hospital"),
        (content.replace(first, first.replace(b"cleveland", b"hungarian")), "patients and of diseased ones"),
        (content.replace(first, first.replace(b"150", b"")), "missing values by column"),
        (content.replace(b",,", b",0,"), "missing values by column"),
    ):
        path.write_bytes(gzip.compress(wrong))
        with pytest.raises(ValueError, match=message):
            sources.heart_disease()


@pytest.mark.parametrize(
    "load", [sources.adult, sources.covertype, sources.fashion_mnist, sources.heart_disease, sources.mnist]
)
def test_a_missing_file_names_the_folder(load, tmp_path, monkeypatch):
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(sources.DataUnavailable, match="CAVITY_DATA") as error:
        load()
    assert str(tmp_path) in str(error.value)
    # OpenML is no remedy for a set that it does not have.
    assert ("OpenML" in str(error.value)) == (load is not sources.heart_disease)


@pytest.mark.parametrize("load", [sources.adult, sources.covertype, sources.fashion_mnist, sources.mnist])
def test_no_folder_and_no_network(load, monkeypatch):
    def no_network(*_, **__):
        raise URLError("name or service not known")

    monkeypatch.delenv("CAVITY_DATA", raising=False)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", no_network)
    with pytest.raises(sources.DataUnavailable, match="name or service not known.*CAVITY_DATA"):
        load()


def test_no_folder_and_no_openml(monkeypatch):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    with pytest.raises(sources.DataUnavailable, match="CAVITY_DATA is not set.*heart_disease.csv.gz"):
        sources.heart_disease()


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
@pytest.mark.parametrize(("name", "openml_name"), [("mnist", "mnist_784"), ("fashion_mnist", "Fashion-MNIST")])
def test_openml_gives_the_same_images(name, openml_name, request, monkeypatch):
    expected = request.getfixturevalue(name)
    images = np.zeros((70_000, 784), dtype=np.uint8)
    images[::100] = np.rint(expected.x[::100] * 255)
    bunch = SimpleNamespace(data=images, target=expected.y.astype(str).astype(object))
    monkeypatch.delenv("CAVITY_DATA")
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda asked, **_: {openml_name: bunch}[asked])
    table = getattr(sources, name)()
    np.testing.assert_array_equal(table.x[::100], expected.x[::100])
    np.testing.assert_array_equal(table.y, expected.y)


def covertype_bunch(directory, scale=1):
    """The file as OpenML has it: numbers, indicators as categories "0" and "1", and the cover type as text."""
    import pandas as pd

    with np.load(directory / "covertype" / "covertype.npz") as archive:
        raw = dict(archive)
    columns = {name: raw["quant"][:, i] * scale for i, name in enumerate(raw["quant_names"].tolist())}
    for stem, codes, number in (("Wilderness_Area", raw["wilderness"], 4), ("Soil_Type", raw["soil"], 40)):
        for i in range(number):
            columns[f"{stem}{i + 1}"] = pd.Categorical.from_codes((codes == i).astype(np.int8), categories=["0", "1"])
    cover = pd.Categorical.from_codes(raw["label"].astype(np.int8) - 1, categories=list("1234567"))
    return SimpleNamespace(data=pd.DataFrame(columns), target=pd.Series(cover, name="class"))


@needs_data
def test_openml_gives_the_same_covertype(covertype, monkeypatch):
    bunch = covertype_bunch(sources.data_directory())
    monkeypatch.delenv("CAVITY_DATA")
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *_, **__: bunch)
    table = sources.covertype()
    assert table.columns == covertype.columns
    assert table.x.dtype == np.float64
    np.testing.assert_array_equal(table.x, covertype.x)
    np.testing.assert_array_equal(table.y, covertype.y)


@needs_data
def test_openml_has_other_versions_of_covertype(monkeypatch):
    scaled, short = covertype_bunch(sources.data_directory(), scale=1e-3), covertype_bunch(sources.data_directory())
    short.data, short.target = short.data[:110_393], short.target[:110_393]
    monkeypatch.delenv("CAVITY_DATA")
    for bunch, message in (
        (scaled, "quantities in the first row"),
        (short, r"shape of the features is \(110393, 54\)"),
    ):
        monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *_, bunch=bunch, **__: bunch)
        with pytest.raises(ValueError, match=message):
            sources.covertype()


def test_data_directory(monkeypatch):
    monkeypatch.setenv("CAVITY_DATA", "some/folder")
    assert sources.data_directory() == Path("some/folder")
    monkeypatch.setenv("CAVITY_DATA", "")
    assert sources.data_directory() is None
