"""Whatever a table holds, the line ends in a result or in one sentence."""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.errors import AdaComputeError
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.solve import solve_source
from adacompute.stages.train import train_run

Rows = list[dict[str, Any]]

WEIRD = ["", " ", "\0", "\u202eabc", "e\u0301\u0301", "\x1b[31m", "שלום", "a\nb", "\U0001f600", "½"]
NUMBERS = [0.0, 0.5, 1.0, 3.0, 1e-45, 1e9, 3e38, -1.0, math.nan, math.inf, -math.inf, None]
COUNTS = [0, 1, 2, 7, 2**31 - 1, -1, None]
OTHER_TYPES: list[Callable[[int], Any]] = [
    lambda size: pa.array([1] * size),
    lambda size: pa.array([0.5] * size),
    lambda size: pa.array(["x"] * size, pa.large_string()),
    lambda size: pa.array([b"\xff"] * size),
    lambda size: pa.array([["x"]] * size),
    lambda size: pa.array([True] * size).dictionary_encode(),
    lambda size: pa.array([0] * size, pa.timestamp("s")),
    pa.nulls,
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a tidy table of sound or odd values, sometimes with a column that is wrong."""
    questions = draw(st.sampled_from([1, 2, 10, 12, 12]))
    most = draw(st.sampled_from([1, 2, 4, 4, 8]))
    ragged = draw(st.booleans())
    unread, right = draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([0, 1, 3, 4]))
    sound = draw(st.booleans())
    chance = draw(st.randoms(use_true_random=False))
    odd = draw(st.sampled_from([*NUMBERS, 1.0, 1.0]))
    rows: Rows = []
    for question in range(questions):
        name = f"{chance.choice(WEIRD)}{question}"
        text = chance.choice([None, f"What is {question}?", chance.choice(WEIRD), "x 1.5 " * 99])
        for number in range(chance.randint(1, most) if ragged else most):
            answer = None if chance.randrange(4) < unread else chance.choice(["1", "2", "x", ""])
            rows.append(
                {
                    "question_id": name,
                    "question": text,
                    "gold": "1" if sound else chance.choice(["1", "x", "", None]),
                    "sample": number,
                    "answer": answer,
                    "correct": answer is not None and chance.randrange(4) < right,
                    "completion_tokens": 5 if sound else chance.choice(COUNTS),
                    "completion_chars": chance.randint(1, 50),
                    "mean_logprob": -1.0 if sound else chance.choice(NUMBERS),
                    "latency_s": chance.choice([1.0, 2.5, odd]),
                }
            )
    chance.shuffle(rows)
    schema = pa.schema(
        {
            "question_id": pa.string(),
            "question": pa.string(),
            "gold": pa.string(),
            "sample": pa.int32(),
            "answer": pa.string(),
            "correct": pa.bool_(),
            "completion_tokens": pa.int32(),
            "completion_chars": pa.int32(),
            "mean_logprob": pa.float32(),
            "latency_s": pa.float32(),
        }
    )
    return mutated(draw, pa.Table.from_pylist(rows, schema=schema))


def mutated(draw: st.DrawFn, table: pa.Table) -> pa.Table:
    """Leave a table as it is, most of the time."""
    what = draw(st.sampled_from(["nothing"] * 6 + ["drop", "rename", "type", "twice", "repeat"]))
    column = draw(st.integers(0, table.num_columns - 1))
    name = table.column_names[column]
    if what == "drop":
        return table.remove_column(column)
    if what == "rename":
        return table.rename_columns({name: draw(st.sampled_from(["level", "answer", name + " "]))})
    if what == "type":
        made = draw(st.sampled_from(OTHER_TYPES))(table.num_rows)
        return table.set_column(column, name, made)
    if what == "twice":
        return table.append_column(name, table.column(column))
    if what == "repeat":
        return pa.concat_tables([table, table.slice(0, 1)])
    return table


BUDGET = st.sampled_from([0.0, -1.0, 0.5, 1.0, 1.5, 2.0, 4.0, 1e300, 5e-324, math.nan, math.inf])
UNIT = st.sampled_from(["samples", "samples", "tokens", "money"])
LEVELS = st.sampled_from([(1,), (1,), (1, 2), (1, 2), (1, 2, 4), (2,), (3, 8), (1, 10**30)])
QUICK_POLICIES = [
    "fixed",
    "mixture",
    "random",
    "longest-first",
    "retry",
    "early-stopping",
    "oracle",
]


def attempt(stage: Callable[..., dict[str, Any] | str], *arguments: Any, **options: Any) -> bool:
    """Run a stage; whether it succeeded. Anything but one sentence or sound JSON is a fault."""
    try:
        result = stage(*arguments, **options)
    except AdaComputeError as error:
        assert len(str(error).splitlines()) == 1, str(error)  # noqa: PT017 - it need not be raised
        return False
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert stage(*arguments, **options) == result
    return True


@settings(max_examples=50)
@given(
    table=tables(),
    grader=st.sampled_from([None, None, "numeric", "exact", "choice"]),
    levels=LEVELS,
    budgets=st.lists(BUDGET, min_size=2, max_size=2),
    unit=UNIT,
    policies=st.lists(st.sampled_from(QUICK_POLICIES), max_size=2),
    drop_unparsed=st.booleans(),
)
def test_any_table_gives_results_or_expected_errors(
    *,
    table: pa.Table,
    grader: str | None,
    levels: tuple[int, ...],
    budgets: list[float],
    unit: str,
    policies: list[str],
    drop_unparsed: bool,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        run, source = place / "run", place / "source.parquet"
        pq.write_table(table, source)
        if not attempt(import_samples, source, run):
            assert not run.exists()
            return
        attempt(solve_source, source, budget=budgets[0], unit=unit, grader=grader, levels=levels)
        attempt(
            evaluate_run,
            run,
            budgets=[budget for budget in budgets if budget != 0.5],
            levels=levels,
            policies=policies,
            drop_unparsed=drop_unparsed,
            unit=unit,
        )
        attempt(train_run, run, policy="mixture", out=place / "bundle", levels=levels)


@pytest.mark.slow
@settings(max_examples=12)
@given(table=tables(), policy=st.sampled_from(["router", "sequential"]), unit=UNIT)
def test_learned_policies_on_any_table_give_results_or_expected_errors(
    table: pa.Table, policy: str, unit: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        run, source = place / "run", place / "source.parquet"
        pq.write_table(table, source)
        if attempt(import_samples, source, run):
            options = {"levels": (1, 2), "unit": unit}
            attempt(evaluate_run, run, budgets=(2.0, 9.0), policies=[policy], **options)
            attempt(train_run, run, policy=policy, out=place / "bundle", **options)


def damaged(run: Path, chance: random.Random) -> None:
    """Damage one file of a run."""
    path = chance.choice(sorted(path for path in run.iterdir() if path.is_file()))
    how = chance.choice(["cut", "flip", "empty", "directory", "remove"])
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how != "remove":
        if how == "flip":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        kept = {"cut": chance.randrange(len(data)), "empty": 0}.get(how, len(data))
        path.write_bytes(data[:kept])


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_run_gives_results_or_expected_errors(
    tmp_path_factory: pytest.TempPathFactory,
    rows: Rows,
    write: Callable[[Path, Rows], Path],
    seed: int,
) -> None:
    place = tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    source, run = write(place / "source.parquet", rows[:64]), place / "run"
    stages: list[Callable[[], Any]] = [
        lambda: import_samples(source, run),
        lambda: solve_source(run, budget=1.5, levels=(1, 2)),
    ]
    for stage in stages:
        stage()
    # Files differ in length by the times they record, so Hypothesis must not choose within them.
    damaged(run, random.Random(seed))
    for stage in [*stages, lambda: train_run(run, policy="mixture", out=place / "bundle")]:
        try:
            stage()
        except AdaComputeError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - it need not be raised
        except OSError as error:  # a directory where a file should be written
            assert error.strerror  # noqa: PT017 - as above
