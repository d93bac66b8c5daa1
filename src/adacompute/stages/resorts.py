"""Resorts: samples of a second model on the questions of a run, joined by their ids.

A second run holds the answers of another model. Its samples are paid for at its own token prices,
each with its prompt. The sequential policy may sample it as its last level.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import Level
from adacompute.evaluation.pool import Resort

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.evaluation.costs import CostModel
    from adacompute.storage.store import Run, SampleSet

NAME = "resort"
"""Name of the model, if the samples do not record it."""


def read_resort(recorded: SampleSet, other: Run, costs: CostModel) -> Resort:
    """Join the samples of another run to recorded questions; every question must have some."""
    if costs.unit == "samples":
        raise ConfigError(
            "samples of two models do not cost the same: use another unit, such as money"
        )
    strong = other.encoded_samples()
    row_of = {name: row for row, name in enumerate(strong.id)}
    missing = [name for name in recorded.id if name not in row_of]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(recorded.id)} questions, such as {missing[0]!r}, have no "
            "sample of the model of last resort: collect them in its run"
        )
    rows = np.array([row_of[name] for name in recorded.id])
    answers = replace(strong.answers, score=_call_cost(strong, costs)).take(rows)
    cost = np.asarray(answers.score, dtype=np.float64)
    name = _model(strong)
    level = Level(name=name, n_samples=1, model=name)
    return Resort(level, replace(answers, score=None), cost)


def _call_cost(strong: SampleSet, costs: CostModel) -> FloatArray:
    """Return the cost of a call for each sample, with its prompt."""
    samples, prompts = replace(costs, round_cost=0.0).split(strong)
    paid = np.broadcast_to(np.asarray(prompts, dtype=np.float64), (len(strong.answers),))
    return np.asarray(samples + paid[strong.answers.question], dtype=np.float64)


def _model(strong: SampleSet) -> str:
    """Return the one model of the samples."""
    names = [name for name in strong.columns["model"].unique().to_pylist() if name is not None]
    if len(names) > 1:
        raise DataError(f"a last resort is one model, not {', '.join(sorted(names))}")
    return names[0] if names else NAME
