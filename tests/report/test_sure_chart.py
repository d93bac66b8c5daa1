"""Sure chart: the page shows how sure answers are, where the bundle of its run says it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from adacompute.evaluation.scoring.precision import Precision, describe_p_correct
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.report.page import render
from adacompute.stages.fit import fit_run
from adacompute.stages.report import REPORT

Rows = list[dict[str, Any]]
SCORES = ("p_correct", "mean log-probability", "agreement")


def read_section(page: str) -> str:
    """Return the section of a page on how sure answers are; empty if it has none."""
    found = page.partition("<h2>How sure</h2>")[2].partition("</section>")[0]
    return found.replace("\u00a0", " ")


def test_the_page_shows_how_sure_answers_are_if_the_bundle_says_it(
    tmp_path: Path, rows: Rows, write: Callable[[Path, Rows], Path]
) -> None:
    copies = [
        row | {name: f"{i} {row[name]}" for name in ("question_id", "question")}
        for i in range(3)
        for row in rows
    ]
    options: dict[str, Any] = {"policy": "adaptive-consistency", "levels": (1, 2, 4), "budget": 2.0}
    source = str(write(tmp_path / "many.parquet", copies))
    result = fit_run(source, out=tmp_path / "policy", min_precision=0.6, **options)
    known = load_bundle(tmp_path / "policy").notes["calibration"]
    assert known["p_correct"]["is_informative"]
    section = read_section(Path(result["report"]).read_text(encoding="utf-8"))
    assert describe_p_correct(known["p_correct"])[1:] in section
    assert str(Precision(**known["precision"])) in section
    assert "2 samples per question" in section
    figure, _, table = section.partition("</figure>")
    assert [figure.count(f">{name}</text>") for name in SCORES] == [2, 2, 2]  # wide and narrow
    shown = [f"{100 * row['accuracy']:.1f} %" for row in known["p_correct"]["curves"]]
    assert all(f"<td>{cell} <span>[" in table for cell in shown)
    assert table.count("<td>") == len(shown)

    document = json.loads((Path(result["run"]) / REPORT).read_text("utf-8"))
    assert not read_section(render(document | {"how_sure": None}))
    unknown = known["p_correct"] | {"is_informative": False}
    section = read_section(
        render(document | {"how_sure": document["how_sure"] | {"p_correct": unknown}})
    )
    assert describe_p_correct(unknown)[1:] in section
    assert "<figure" not in section
