"""Tables in every format, with cells that come from others."""

import csv
import io

import pytest

from cavity.reporting.tables import Table

HOSTILE = "<script>alert('1')</script> | $x_1$ & 5 % {a} \\b"
TABLE = Table("Result", ("name", "value"), ((HOSTILE, "1.5"), ("=1+1", "-2")), ("a note | <b>",), "result")


def test_html_is_escaped():
    page = TABLE.to_html()
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<tr>") == 3


def test_csv_is_read_back_and_no_cell_is_computed_by_a_spreadsheet():
    rows = list(csv.reader(io.StringIO(TABLE.to_csv())))
    assert rows[0] == ["name", "value"]
    assert rows[1][0] == HOSTILE
    assert rows[2] == ["'=1+1", "-2"]  # a number keeps its sign


def test_markdown_has_as_many_cells_in_every_row():
    lines = TABLE.to_markdown().splitlines()[:4]
    assert {line.replace(r"\|", "").count("|") for line in lines} == {3}
    assert "<" not in "".join(lines)


def test_latex_has_no_command_of_a_cell():
    text = TABLE.to_latex()
    row = text.splitlines()[4]
    assert row.startswith(r"\textless{}script\textgreater{}")
    assert r"\$x\_1\$ \& 5 \% \{a\} \textbackslash{}b" in row
    assert text.count(r"\\") == 3
    assert r"\toprule" in text


@pytest.mark.parametrize("form", ["to_html", "to_csv", "to_markdown", "to_latex"])
def test_a_table_without_rows(form):
    assert "name" in getattr(Table("", ("name",), ()), form)()
