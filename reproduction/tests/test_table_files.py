"""Table files: number formats, and escaping in every format."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from reproduction.table_files import Row, save_table, to_csv, to_markdown

ROWS: list[Row] = [
    {"policy": "a|b_c", "gain low": 0.00082, "gain high": 0.0071, "exact price": 0.00041, "n": 3},
    {"policy": "50% & more", "gain low": -0.00004, "gain high": None, "exact price": 0.125, "n": 4},
    {"policy": "–", "gain low": -0.0123, "gain high": 1e-17, "exact price": 0.0, "n": 5},
]


def columns(text: str) -> dict[str, list[str]]:
    """Return the cells of a Markdown table by column."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return {name: [line[i] for line in lines[2:]] for i, name in enumerate(lines[0])}


def test_numbers_of_a_column_have_the_same_format() -> None:
    cells = columns(to_markdown([row | {"policy": "x"} for row in ROWS]))
    assert cells["gain low"] == ["0.001", "0.000", "-0.012"]
    assert cells["gain high"] == ["0.007", "–", "0.000"]
    assert cells["n"] == ["3", "4", "5"]


def test_small_prices_keep_their_digits() -> None:
    assert columns(to_markdown([row | {"policy": "x"} for row in ROWS]))["exact price"] == [
        "0.00041",
        "0.125",
        "0.000",
    ]


def test_a_column_of_small_numbers_keeps_its_digits() -> None:
    rows: list[Row] = [{"regret": 0.00012}, {"regret": 0.0}, {"regret": -0.000034}]
    assert columns(to_markdown(rows))["regret"] == ["0.00012", "0.000", "-3.4e-05"]


def test_every_format_has_the_same_rows(tmp_path: Path) -> None:
    paths = save_table(ROWS, tmp_path / "main")
    assert [path.name for path in paths] == ["main.csv", "main.md"]
    read = list(csv.DictReader(io.StringIO(paths[0].read_text(encoding="utf-8"))))
    assert [float(row["gain low"]) for row in read] == [row["gain low"] for row in ROWS]
    assert read[0]["policy"] == "a|b_c"
    assert r"a\|b\_c" in paths[1].read_text(encoding="utf-8")


def test_no_rows_give_an_empty_table() -> None:
    assert to_csv([]) == "\n"
    assert to_markdown([]).count("\n") == 2
