"""Questions: the question sets of the paper, 200 each, chosen from a Parquet file.

``python -m reproduction.questions math-test.parquet math.parquet --difficulties 2,3,4`` chooses
equally many MATH questions of levels 2 to 4, and without difficulties, 200 of all, as for GSM8K.
``adacompute collect`` reads the file that it writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.datasets.sources import choose_questions, read_question_source

N_QUESTIONS = 200


def choose_stratified(
    table: pa.Table, n_questions: int, difficulties: Sequence[str], *, seed: int = 0
) -> pa.Table:
    """Choose equally many questions of each difficulty, as far as there are enough."""
    n_parts = len(difficulties)
    strata = [
        choose_questions(
            table.filter(pc.equal(table["difficulty"], name)),
            n_questions // n_parts + (i < n_questions % n_parts),
            seed=seed,
        )
        for i, name in enumerate(difficulties)
    ]
    return pa.concat_tables(strata)


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose the questions of a file and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--difficulties", type=lambda text: text.split(","))
    options = parser.parse_args(arguments)
    table = read_question_source(options.source)
    if options.difficulties:
        chosen = choose_stratified(table, N_QUESTIONS, options.difficulties)
    else:
        chosen = choose_questions(table, N_QUESTIONS, seed=0)
    pq.write_table(chosen, options.out)


if __name__ == "__main__":
    main()
