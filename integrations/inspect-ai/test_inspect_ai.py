"""Test of the Inspect AI example against a fake upstream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_task import sums
from inspect_ai import eval as evaluate
from inspect_ai.log import read_eval_log

if TYPE_CHECKING:
    from conftest import Server


def test_the_log_has_samples_and_cost(upstream: Server, tmp_path: Path) -> None:
    (log,) = evaluate(
        sums(),
        model="openai-api/local/fake",
        model_base_url=upstream.base_url,
        model_args={"api_key": "none"},
        temperature=0.7,
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    log = read_eval_log(log.location)
    counts = upstream.counts()
    outputs = [sample.output for sample in log.samples or []]
    assert sum(one.metadata["samples"] for one in outputs) == counts["choices"] > 10
    assert sum(one.usage.output_tokens for one in outputs) == counts["tokens"]
    (usage,) = log.stats.model_usage.values()  # Inspect's own sum over all calls
    assert usage.output_tokens == counts["tokens"]
    assert all(one.metadata["answer"] in one.completion for one in outputs)
