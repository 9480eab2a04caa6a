"""Bank, credit, intensive care and the small classics: known counts, no leakage, and what an absent one says."""

import gzip
import re

import numpy as np
import pytest

from cavity.datasets import partition
from cavity.errors import DataError
from cavity_experiments import sources
from cavity_experiments.sources.encoding import standardise
from tests.marks import needs_data, thorough

SMALL = {
    "banana": (5_300, 2, 2_376),
    "titanic": (2_201, 3, 711),
    "twonorm": (7_400, 20, 3_697),
    "magic": (19_020, 10, 12_332),
    "pima": (768, 8, 268),
    "australian": (690, 14, 307),
}


@needs_data
@pytest.mark.parametrize("name", SMALL)
def test_small_sets(name):
    table, (num_rows, num_features, positive) = getattr(sources, name)(), SMALL[name]
    assert table.name == name
    assert table.x.shape == (num_rows, num_features) == (num_rows, len(set(table.columns)))
    assert table.x.dtype == np.float64
    assert (set(np.unique(table.y)), table.y.sum()) == ({0, 1}, positive)
    assert np.isnan(table.x).any() == (name == "pima")


@needs_data
def test_pima_has_no_impossible_zeros():
    table = sources.pima()
    missing = dict(zip(table.columns, np.isnan(table.x).sum(axis=0).tolist(), strict=True))
    expected = {"glucose": 5, "pressure": 35, "triceps": 227, "insulin": 374, "mass": 11}
    assert {name: count for name, count in missing.items() if count} == expected
    assert np.sum(table.x[:, 0] == 0) == 111  # no pregnancy is an answer


@needs_data
def test_bank():
    table = sources.bank()
    assert table.x.shape == (45_211, 51) == (45_211, len(set(table.columns)))
    assert table.y.sum() == 5_289
    # the first customer: 58, a married manager, who did not subscribe
    first = dict(zip(table.columns, table.x[0], strict=True))
    assert (first["job=management"], first["job=student"], first["marital=married"], table.y[0]) == (1, 0, 1, 0)
    without = sources.bank(duration=False)
    assert set(table.columns) - set(without.columns) == {"duration"}


@needs_data
def test_omniglot_has_160_drawers_who_drew_each_character_of_their_alphabet_once():
    table = sources.omniglot_small()
    assert table.x.shape == (4_840, 28, 28)
    assert (table.x.min(), table.x.max()) == (0.0, 1.0)
    clients = partition.by_column(table.drawer)
    assert len(clients) == 160
    for name, rows in clients.items():
        assert len(np.unique(table.y[rows])) == len(rows) == np.sum(table.alphabet == name[:-3]) // 20
    assert np.bincount(table.y).tolist() == [20] * 242


@needs_data
def test_credit_leaves_incomplete_rows_out():
    table = sources.credit()
    assert table.x.shape == (653, 46) == (653, len(set(table.columns)))
    assert table.y.sum() == 296
    assert not any("?" in column for column in table.columns)


@needs_data
@pytest.mark.parametrize(("load", "num_numeric"), [(sources.bank, 7), (sources.credit, 6)])
@thorough
def test_training_rows_alone_standardise(load, num_numeric):
    everything = load()
    rows = np.arange(0, len(everything.x), 3)
    table = load(rows)
    numeric = table.x[:, :num_numeric]
    np.testing.assert_allclose(numeric[rows].mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(numeric[rows].std(axis=0), 1, rtol=1e-10)
    assert np.abs(numeric.mean(axis=0)).max() > 1e-3
    np.testing.assert_array_equal(table.x[:, num_numeric:], everything.x[:, num_numeric:])


@needs_data
def test_eicu_demo():
    table = sources.eicu_demo()
    assert table.x.shape == (2_179, 35)
    assert table.y.sum() == 196
    sizes = [len(rows) for rows in partition.by_column(table.hospital).values()]
    assert (len(sizes), min(sizes), max(sizes)) == (186, 2, 23)
    assert len(np.unique(table.patient)) == 1_765
    missing = dict(zip(table.columns, np.isnan(table.x).sum(axis=0).tolist(), strict=True))
    assert (missing["ph"], missing["age"], missing["diabetes"]) == (1_776, 3, 0)
    assert np.nanmax(table.x[:, 0]) == 90


@needs_data
@pytest.mark.parametrize("load", [sources.heart_disease, sources.eicu_demo, sources.pima])
def test_imputation_sees_the_training_rows_alone(load):
    raw = load()
    rows = np.arange(len(raw.x)) % 3 != 0
    table = sources.imputed(raw, rows)
    assert np.isfinite(table.x).all()
    assert type(table) is type(raw)
    # changing a test row changes no other row
    changed = raw.x.copy()
    changed[0] = np.where(np.isnan(changed[0]), np.nan, changed[0] + 1000)
    again = sources.imputed(type(raw)(**{**raw.__dict__, "x": changed}), rows)
    np.testing.assert_array_equal(again.x[1:], table.x[1:])
    assert not np.array_equal(again.x[0], table.x[0])
    holes = [name for name, gone in zip(raw.columns, np.isnan(raw.x).any(axis=0), strict=True) if gone]
    assert table.columns == (*raw.columns, *(f"{name} missing" for name in holes))


def small_table(x):
    x = np.array(x, float)
    return sources.Table("toy", x, np.zeros(len(x)), tuple("abc"[: x.shape[1]]))


def test_imputation_by_hand():
    """Column a has mean 2 and sd 1 in the training rows, and there is a hole; column b is 0/1 and stays so."""
    table = small_table([[1, 0], [3, 1], [np.nan, 1], [10, np.nan]])
    found = sources.imputed(table, np.array([0, 1]))
    assert found.columns == ("a", "b", "a missing", "b missing")
    np.testing.assert_allclose(found.x, [[-1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [8, 0.5, 0, 1]])


def test_unusable_training_rows_are_reported():
    with pytest.raises(ValueError, match="columns a have no value in training_rows"):
        sources.imputed(small_table([[np.nan, 1], [np.nan, 2], [3, 3]]), np.array([0, 1]))
    with pytest.raises(ValueError, match="repeats rows"):
        standardise(np.eye(3), np.array([0, 0, 1]))
    with pytest.raises(ValueError, match=r"columns \[1\] are constant"):
        standardise(np.array([[1.0, 2], [2, 2]]), None)


LOCAL = ["bank", "credit", "eicu_demo", "omniglot_small", *SMALL]


@pytest.mark.parametrize("name", LOCAL)
def test_without_a_folder_they_say_what_is_missing(name, monkeypatch, tmp_path):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    with pytest.raises(sources.DataUnavailable, match=f"{name}.*CAVITY_DATA is not set.*{FILES[name]}"):
        getattr(sources, name)()
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(sources.DataUnavailable, match=re.escape(str(tmp_path))) as error:
        getattr(sources, name)()
    assert "OpenML" not in str(error.value)


FILES = {entry.name: entry.files[0] for entry in sources.CATALOGUE}


@needs_data
def test_a_wrong_file_is_reported(tmp_path, monkeypatch):
    content = gzip.decompress((sources.data_directory() / FILES["credit"]).read_bytes())
    path = tmp_path / FILES["credit"]
    path.parent.mkdir()
    path.write_bytes(gzip.compress(content.replace(b",+\n", b",-\n", 1)))
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(DataError, match="approvals"):
        sources.credit()


def test_every_set_is_in_the_catalogue():
    names = [entry.name for entry in sources.CATALOGUE]
    assert len(names) == len(set(names))
    assert all(callable(getattr(sources, name)) for name in names)
    other = {"data_directory", "imputed", "standardised", "uci_splits"}
    functions = {name for name in sources.__all__ if name[0].islower()} - other
    assert functions == set(names)


@needs_data
def test_the_catalogue_names_the_files_that_are_read():
    assert [file for entry in sources.CATALOGUE for file in entry.missing(sources.data_directory())] == []


def test_the_list_says_what_is_here(command, monkeypatch, tmp_path):
    (tmp_path / "small_binary").mkdir()
    (tmp_path / FILES["banana"]).write_bytes(b"")
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    code, printed, _ = command("data", "list")
    assert code == 0
    assert str(tmp_path) in printed
    assert re.search(r"banana +here", printed)
    assert re.search(r"bank +missing", printed)
    assert "bank: put bank_marketing/bank_full.csv.gz into the folder; from archive.ics.uci.edu" in printed
    assert "adult: put" in printed
    assert "OpenML" in printed


def test_the_list_without_a_folder(command, monkeypatch):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    code, printed, _ = command("data", "list")
    assert code == 0
    assert "CAVITY_DATA is not set" in printed
    assert re.search(r"mnist +OpenML", printed)
    assert re.search(r"eicu_demo +missing", printed)
