"""Questions: the sets of the paper's setup."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.datasets.sources import read_question_source
from reproduction.questions import main


def test_paper_questions_are_stratified(tmp_path: Path) -> None:
    rows = [
        {"question_id": f"q{i}", "question": f"{i} + 1?", "gold": f"{i + 1}", "level": str(i % 5)}
        for i in range(400)
    ]
    source, out = str(tmp_path / "math.parquet"), str(tmp_path / "chosen.parquet")
    pq.write_table(pa.Table.from_pylist(rows), source)
    main([source, out])
    assert read_question_source(out).num_rows == 200
    main([source, out, "--difficulties", "2,3,4"])
    chosen = read_question_source(out)
    assert len(set(chosen["question_id"].to_pylist())) == 200
    assert Counter(chosen["difficulty"].to_pylist()) == {"2": 67, "3": 67, "4": 66}
