"""The data sets of mixed models and of topic models are what their files say, and what is missing says so."""

import csv
import gzip
import shutil
from collections import Counter

import numpy as np
import pytest

from cavity.datasets import partition
from cavity_experiments import sources
from tests.marks import needs_data

LOADERS = {
    "six_cities": (sources.six_cities, "six_cities_ohio/ohio.csv.gz"),
    "radon": (sources.radon, "radon/radon_mn.csv.gz"),
    "contraception": (sources.contraception, "multilevel/Contraception.csv.gz"),
    "toenail": (sources.toenail, "multilevel/toenail.csv.gz"),
    "newsgroups": (sources.newsgroups, "newsgroups20/20news_bow.npz"),
}


def rows_of(file):
    with gzip.open(sources.data_directory() / file, "rt") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture(scope="module")
def newsgroups():
    return sources.newsgroups()


@needs_data
def test_six_cities():
    data = sources.six_cities()
    assert data.child.shape == data.smoke.shape == (537,)
    assert data.age.shape == data.wheeze.shape == (537, 4)
    assert (data.smoke.dtype, data.age.dtype, data.wheeze.dtype) == (np.float64, np.float64, np.int64)
    rows = rows_of("six_cities_ohio/ohio.csv.gz")
    assert data.wheeze.sum() == sum(row["resp"] == "1" for row in rows) == 326
    # The rates by visit that the source gives.
    np.testing.assert_allclose(data.wheeze.mean(axis=0), [0.1620, 0.1695, 0.1583, 0.1173], atol=5e-5)
    # Each row of the file is where its child and its age say.
    visit = {
        (child, age): (smoke, wheeze)
        for child, smoke, ages, wheezes in zip(data.child, data.smoke, data.age, data.wheeze, strict=True)
        for age, wheeze in zip(ages, wheezes, strict=True)
    }
    assert len(visit) == len(rows) == 2_148
    assert all(visit[row["id"], float(row["age"])] == (float(row["smoke"]), int(row["resp"])) for row in rows)


@needs_data
def test_toenail():
    data = sources.toenail()
    rows = rows_of("multilevel/toenail.csv.gz")
    assert data.patient.shape == data.treated.shape == data.time.shape == data.infected.shape == (1_908,)
    assert data.patient.tolist() == [int(row["patientID"]) for row in rows]
    assert data.infected.sum() == sum(row["outcome"] == "moderate or severe" for row in rows)
    assert data.time.tolist() == [float(row["time"]) for row in rows]


@needs_data
def test_radon():
    data = sources.radon()
    rows = rows_of("radon/radon_mn.csv.gz")
    assert data.county.shape == data.floor.shape == data.log_radon.shape == data.log_uranium.shape == (919,)
    sizes = [len(houses) for houses in partition.by_column(data.county).values()]
    assert (len(sizes), min(sizes), max(sizes)) == (85, 1, 116)
    assert data.county.tolist() == [row["county"] for row in rows]
    assert data.floor.tolist() == [float(row["floor"]) for row in rows]
    assert set(data.floor) == {0.0, 1.0}
    np.testing.assert_allclose(data.log_radon, np.log([float(row["activity"]) + 0.1 for row in rows]), rtol=1e-9)
    np.testing.assert_allclose(np.exp(data.log_uranium), [float(row["Uppm"]) for row in rows], rtol=1e-12)
    assert np.all(np.isfinite([data.floor, data.log_radon, data.log_uranium]))
    # Basements have more of it.
    assert data.log_radon[data.floor == 0].mean() > data.log_radon[data.floor == 1].mean() + 0.3


@needs_data
def test_contraception():
    data = sources.contraception()
    rows = rows_of("multilevel/Contraception.csv.gz")
    assert data.district.shape == data.use.shape == data.urban.shape == data.age.shape == (1_934,)
    assert data.use.dtype == np.int64
    clients = partition.by_column(data.district)
    assert set(clients) == {str(number) for number in range(1, 62) if number != 54}
    assert len(clients) == 60
    sizes = [len(women) for women in clients.values()]
    assert (min(sizes), max(sizes)) == (2, 118)
    assert data.district.tolist() == [row["district"] for row in rows]
    assert data.use.tolist() == [{"N": 0, "Y": 1}[row["use"]] for row in rows]
    assert data.urban.tolist() == [{"N": 0.0, "Y": 1.0}[row["urban"]] for row in rows]
    assert data.age.tolist() == [float(row["age"]) for row in rows]
    assert abs(data.age.mean()) < 0.01
    dummies = {"0": [0, 0, 0], "1": [1, 0, 0], "2": [0, 1, 0], "3+": [0, 0, 1]}
    np.testing.assert_array_equal(data.children, [dummies[row["livch"]] for row in rows])
    assert data.children.dtype == np.float64


@needs_data
def test_newsgroups(newsgroups):
    assert newsgroups.counts.shape == (18_846 - 110 - 96, 2_000)
    assert newsgroups.counts.dtype == np.uint16
    assert newsgroups.counts.nbytes < 200e6
    assert len(newsgroups.words) == len(set(newsgroups.words)) == 2_000
    assert (len(newsgroups.train), len(newsgroups.test)) == (11_314 - 110, 7_532 - 96)
    both = np.concatenate([newsgroups.train, newsgroups.test])
    np.testing.assert_array_equal(both, np.arange(len(newsgroups.counts)))
    assert newsgroups.counts.sum(axis=1).min() > 0
    assert len(partition.by_column(newsgroups.newsgroup)) == 20
    # Words stand in the order of their frequency in the training part.
    frequency = newsgroups.counts[newsgroups.train].sum(axis=0)
    assert np.all(np.diff(frequency.astype(np.int64)) <= 0)
    assert newsgroups.words[:3] == ("max", "people", "like")
    # The binaries of which the docstring warns.
    assert newsgroups.counts.max() == newsgroups.counts[:, 0].max() == 800
    assert not {"the", "and", "with"} & set(newsgroups.words)


@needs_data
def test_newsgroups_counts_are_those_of_the_file(newsgroups):
    folder = sources.data_directory() / "newsgroups20"
    vocabulary = (folder / "vocab.txt").read_text().split()
    groups = (folder / "group_names.txt").read_text().split()
    with np.load(folder / "20news_bow.npz") as archive:
        raw = dict(archive)
    # Every post's words, read one post after the other, and the empty posts left out.
    words, position = set(newsgroups.words), 0
    for post, (start, stop) in enumerate(zip(raw["indptr"][:-1], raw["indptr"][1:], strict=True)):
        spelled = [vocabulary[index] for index in raw["indices"][start:stop]]
        if not words.intersection(spelled):
            continue
        # Comparing every hundredth row is enough, and quick.
        if position % 100 == 0:
            expected = {
                word: int(count) for word, count in zip(spelled, raw["data"][start:stop], strict=True) if word in words
            }
            row = newsgroups.counts[position]
            assert {newsgroups.words[index]: int(row[index]) for index in np.flatnonzero(row)} == expected
            assert newsgroups.newsgroup[position] == groups[raw["label"][post]]
        position += 1
    assert position == len(newsgroups.counts)


@needs_data
def test_newsgroups_topics_are_in_their_groups(newsgroups):
    def commonest_group(word):
        posts = newsgroups.counts[:, newsgroups.words.index(word)] > 0
        return Counter(newsgroups.newsgroup[posts].tolist()).most_common(1)[0][0]

    assert commonest_group("hockey") == "rec.sport.hockey"
    assert commonest_group("encryption") == "sci.crypt"
    assert commonest_group("orbit") == "sci.space"


@needs_data
def test_fewer_words(newsgroups):
    few = sources.newsgroups(vocabulary=50)
    assert few.words == newsgroups.words[:50]
    kept = newsgroups.counts[:, :50].sum(axis=1) > 0
    np.testing.assert_array_equal(few.counts, newsgroups.counts[kept, :50])
    np.testing.assert_array_equal(few.newsgroup, newsgroups.newsgroup[kept])


@pytest.mark.parametrize("vocabulary", [0, -1, 9_261])
def test_no_such_vocabulary(vocabulary):
    with pytest.raises(ValueError, match=f"vocabulary is {vocabulary}.*9260 words"):
        sources.newsgroups(vocabulary)


@needs_data
@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("six_cities", b"0,0,-2,0\n", b"", "number of rows is 2147, not 2148"),
        ("six_cities", b"0,0,-2,0\n", b"1,0,-2,0\n", "children who wheezed by visit"),
        ("six_cities", b"0,0,-2,0\n", b"0,0,-2,1\n", "share the mother's smoking"),
        ("six_cities", b"0,0,-2,0\n", b"0,0,1,0\n", "visits are in order"),
        ("six_cities", b"0,1,-2,0\n", b"0,0,-2,0\n", "share the child"),
        ("radon", b"AITKIN", b"ANOKA", "number of counties is 84, not 85"),
        ("radon", b"AITKIN,0,1.0,", b"AITKIN,0,0.0,", "measurements on the first floor is 152"),
        ("radon", b"1.0,0.502054", b"1.0,0.6", "values of uranium"),
        ("contraception", b"\n1,1,N,3+", b"\n1,1,Y,3+", "women who use contraception is 760"),
        ("contraception", b"\n1,1,N,3+", b"\n1,54,N,3+", "number of districts is 61, not 60"),
        ("contraception", b"\n1,1,N,3+", b"\n1,1,N,3", "women by living children"),
        ("contraception", b"livch", b"living", "set of columns"),
    ],
)
def test_wrong_files(name, old, new, message, tmp_path, monkeypatch):
    load, file = LOADERS[name]
    content = gzip.decompress((sources.data_directory() / file).read_bytes())
    assert old in content
    copy = tmp_path / file
    copy.parent.mkdir()
    copy.write_bytes(gzip.compress(content.replace(old, new)))
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        load()


@needs_data
def test_wrong_newsgroups_files(tmp_path, monkeypatch):
    original, folder = sources.data_directory() / "newsgroups20", tmp_path / "newsgroups20"
    folder.mkdir()
    for file in ("20news_bow.npz", "vocab.txt", "group_names.txt"):
        shutil.copyfile(original / file, folder / file)
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with np.load(folder / "20news_bow.npz") as archive:
        raw = dict(archive)
    for name, index, message in (
        ("data", 0, "words in all posts"),
        ("vocab_rank", 0, "ranks are 0 to 9259"),
        ("is_test", 0, "number of test posts is 7533"),
    ):
        array = raw[name].copy()
        array[index] += 1
        np.savez(folder / "20news_bow.npz", **(raw | {name: array}))
        with pytest.raises(ValueError, match=message):
            sources.newsgroups()
    (folder / "vocab.txt").write_text("word\n")
    with pytest.raises(ValueError, match=r"vocab.txt is not .* number of lines is 1, not 9260"):
        sources.newsgroups()


@needs_data
@pytest.mark.parametrize("file", ["20news_bow.npz", "vocab.txt", "group_names.txt"])
def test_newsgroups_need_all_three_files(file, tmp_path, monkeypatch):
    original, folder = sources.data_directory() / "newsgroups20", tmp_path / "newsgroups20"
    folder.mkdir()
    for other in {"20news_bow.npz", "vocab.txt", "group_names.txt"} - {file}:
        shutil.copyfile(original / other, folder / other)
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(sources.DataUnavailable, match=f"{file} is missing") as error:
        sources.newsgroups()
    assert "OpenML" not in str(error.value)


@pytest.mark.parametrize(("load", "file"), LOADERS.values(), ids=LOADERS)
def test_a_missing_folder_is_named(load, file, tmp_path, monkeypatch):
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    with pytest.raises(sources.DataUnavailable, match="is missing. CAVITY_DATA names the folder") as error:
        load()
    assert str((tmp_path / file).parent) in str(error.value)
    # OpenML is no remedy for a set that is not had from there.
    assert "OpenML" not in str(error.value)


@pytest.mark.parametrize(("load", "file"), LOADERS.values(), ids=LOADERS)
def test_no_folder(load, file, monkeypatch):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    with pytest.raises(sources.DataUnavailable, match=f"CAVITY_DATA is not set.*{file}"):
        load()
