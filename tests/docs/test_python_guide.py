"""The code of the Python guide runs as it stands."""

import pytest

from tests.docs.pages import run_blocks


@pytest.mark.slow
def test_python_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks("docs/python.md")
    assert "dose" in capsys.readouterr().out
    assert namespace["without"].server.names == ("york", "hull")
    assert (tmp_path / "fit.npz").exists()
