"""Clients on disk or generated: what is loaded equals what was written, and damage is reported."""

import json
import time

import numpy as np
import pytest

import cavity
from cavity.datasets.sources import (
    STACKOVERFLOW,
    ClientFiles,
    Generated,
    HeavyTailed,
    IndexedClients,
    write_client_files,
    write_indexed_clients,
)
from cavity.errors import DataError
from tests import scenarios

SIZES = (3, 1, 7)


def clients():
    rng = np.random.default_rng(1)
    return {f"site {i}": (rng.normal(size=(n, 2)), rng.integers(0, 2, n)) for i, n in enumerate(SIZES)}


@pytest.fixture(params=[write_client_files, write_indexed_clients], ids=["files", "indexed"])
def write(request):
    return request.param


def test_what_is_loaded_equals_what_was_written(write, tmp_path):
    ours = clients()
    written = write(tmp_path / "new", ours)
    for source in (written, type(written)(tmp_path / "new")):
        assert list(source.names) == list(ours)
        assert [source.num_rows(name) for name in source.names] == list(SIZES)
        for name, (x, y) in zip(("site 2", "site 0"), source.load(["site 2", "site 0"]), strict=True):
            np.testing.assert_array_equal(x, ours[name][0])
            np.testing.assert_array_equal(y, ours[name][1])
            assert y.dtype == ours[name][1].dtype


def test_clients_are_written_one_by_one_and_may_have_one_array(write, tmp_path):
    """A generator is not held in memory as a whole: the first client is on disk when the second is generated."""
    seen = []

    def one_by_one():
        for i in range(3):
            seen.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
            yield f"c{i}", np.full((20_000, 2), i, np.float32)

    source = write(tmp_path, one_by_one(), arrays=["counts"])
    assert seen[0] < seen[1] < seen[2]
    assert [float(rows.mean()) for rows in source.load(["c2", "c0"])] == [2.0, 0.0]


def test_a_run_from_disk_is_the_run_in_memory(write, tmp_path):
    problem = scenarios.logistic(30, 1)
    held = scenarios.clients(problem.x, problem.y, [np.arange(10), np.arange(10, 14), np.arange(14, 30)])
    algorithm = cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0))
    here = cavity.run(algorithm, held, rounds=2, tolerance=0.0)
    there = cavity.run(algorithm, write(tmp_path, held), rounds=2, tolerance=0.0, chunk=2)
    np.testing.assert_allclose(there.posterior.precision, here.posterior.precision, rtol=1e-12)


def test_data_that_cannot_be_written_are_refused(write, tmp_path):
    for value, message in (
        ((np.ones((2, 1)), np.ones(3)), "different numbers of rows .x 2, y 3."),
        ((np.ones(2),), "one array for each of x, y"),
        ((np.ones(2), np.array([{}, {}])), "'y' holds objects"),
        ((np.ones(2), 3.0), "'y' is a single number"),
    ):
        with pytest.raises(DataError, match=f"client 'york': .*{message}"):
            write(tmp_path, {"york": value})


def test_bad_folders(tmp_path):
    for source in (ClientFiles, IndexedClients):
        with pytest.raises(DataError, match=r"nowhere: folder not found; check the path"):
            source(tmp_path / "nowhere")
    with pytest.raises(DataError, match="contains no .npz files; `write_client_files`"):
        ClientFiles(tmp_path)
    with pytest.raises(DataError, match=r"index.json: index not found, because writing was interrupted"):
        IndexedClients(tmp_path)
    with pytest.raises(DataError, match="cannot be used for a file; rename"):
        write_client_files(tmp_path, {"../york": (np.ones(1), np.ones(1))})


def test_bad_client_files(tmp_path):
    source = write_client_files(tmp_path, clients())
    np.savez(tmp_path / "site 0.npz", x=np.ones(2), z=np.ones(2))
    whole = (tmp_path / "site 1.npz").read_bytes()
    (tmp_path / "site 1.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "site 2.npz").unlink()
    for name, message in (
        ("site 0", r"site 0.npz: array 'y' not found \(it has x, z\)"),
        ("site 1", r"site 1.npz: it cannot be read as arrays .*write the file again"),
        ("site 2", r"site 2.npz: file not found; restore it"),
    ):
        with pytest.raises(DataError, match=message):
            source.load([name])
    assert source.num_rows("site 1") is None  # `load` reports what is wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "index.json: the index cannot be read .*cut off; write it again"),
        (
            lambda text: text.replace('"site 2"', '"site 2", "site 3"'),
            "4 clients and 4 offsets; there must be one more",
        ),
        (lambda text: text.replace("[0, 3, 4, 11]", "[0, 4, 3, 11]"), "never decreasing"),
        (lambda text: text.replace("[0, 3, 4, 11]", "[0, 3, 4, 12]"), "x.npy: it has 11 rows, and the index 12"),
        (lambda text: json.dumps(json.loads(text) | {"names": [], "offsets": [0]}), "names no clients"),
        (lambda text: text.replace('"y"', '"z"'), "z.npy: file not found, but the index names it"),
    ],
)
def test_a_bad_index(tmp_path, change, message):
    write_indexed_clients(tmp_path, clients())
    path = tmp_path / "index.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message):
        IndexedClients(tmp_path)


def test_a_file_of_rows_that_is_cut_off(tmp_path):
    source = write_indexed_clients(tmp_path, clients())
    with pytest.raises(DataError, match="client 'hull' not found"):
        source.load(["hull"])
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-8])
    with pytest.raises(DataError, match=r"x.npy: it cannot be read as an array .*write it again"):
        IndexedClients(tmp_path)


def test_interrupted_writing_leaves_no_index(tmp_path):
    write_indexed_clients(tmp_path, clients())
    wide = clients() | {"late": (np.ones((2, 3)), np.ones(2, int))}
    with pytest.raises(DataError, match=r"client 'late': rows of shape \(3,\)"):
        write_indexed_clients(tmp_path, wide)
    with pytest.raises(DataError, match="writing was interrupted"):
        IndexedClients(tmp_path)
    with pytest.raises(DataError, match="client 'a' appears twice"):
        write_indexed_clients(tmp_path, [("a", (np.ones(1), np.ones(1)))] * 2)
    with pytest.raises(DataError, match="no clients to write"):
        write_indexed_clients(tmp_path, {})


def normal(rng, num_rows, number):
    return rng.normal(number, 1.0, num_rows)


def test_generated_clients_depend_on_seed_and_number_only():
    many, few = Generated(1000, 5, normal, seed=3), Generated(10, 5, normal, seed=3)
    (alone,) = few.load(["client-7"])
    np.testing.assert_array_equal(alone, many.load(["client-2", "client-7"])[1])
    assert not np.array_equal(alone, Generated(10, 5, normal, seed=4).load(["client-7"])[0])
    assert [Generated(2, [4, 9], normal).num_rows(name) for name in ("client-0", "client-1")] == [4, 9]
    for name in ("client-1000", "client-07", "york", "client-"):
        with pytest.raises(DataError, match="choose one of client-0 to client-999"):
            many.load([name])


def test_sizes_are_heavy_tailed_as_in_table_1():
    """Mean and sd agree within their Monte Carlo error; the sd of a heavy tail is known to about a tenth."""
    sizes = STACKOVERFLOW.draw(np.random.default_rng(0), 342_477)
    np.testing.assert_allclose(sizes.mean(), 397, rtol=5 * 1279 / 397 / np.sqrt(342_477))
    np.testing.assert_allclose(sizes.std(), 1279, rtol=0.2)
    assert sizes.min() == 1
    assert np.median(sizes) < 397 / 2
    assert set(HeavyTailed(100, 0).draw(np.random.default_rng(0), 50)) == {100}
    assert HeavyTailed(397, 1279, maximum=500).draw(np.random.default_rng(0), 1000).max() == 500


def test_bad_sizes():
    with pytest.raises(DataError, match="mean of at least 1"):
        HeavyTailed(0, 1)
    with pytest.raises(DataError, match="maximum cannot be 0"):
        HeavyTailed(5, 1, maximum=0)
    with pytest.raises(DataError, match="at least one client"):
        Generated(0, 5, normal)
    with pytest.raises(DataError, match="client-1 has none"):
        Generated(2, [3, 0], normal)


def test_names_of_very_many_are_cheap():
    """Processor time relative to that of making the texts alone."""

    def seconds(make):
        began = time.process_time()
        make()
        return time.process_time() - began

    def checked():
        source = Generated(342_477, STACKOVERFLOW, normal)
        assert source.names is source.names
        assert len(source.names) == 342_477

    texts = min(seconds(lambda: [f"client-{i}" for i in range(342_477)]) for _ in range(3))
    assert min(seconds(checked) for _ in range(3)) < 20 * texts
