"""Ray Data's vLLM processor: answer questions in rounds, under a hard total of samples.

    python adaptive_rounds.py MODEL QUESTIONS.parquet ANSWERS.parquet --total 400 [--gpus 1]

MODEL is a name or a directory that vLLM can load. The questions have columns question_id and
question. In every round the policy says how many samples it wants next of each open question. A
row of the round's dataset is one sample: Ray's stage keeps one output per prompt, so n samples are
n equal rows, and vLLM's prefix cache computes their prompt once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

import adacompute as ada

Row = dict[str, Any]
Processor = Callable[[ray.data.Dataset], ray.data.Dataset]


@dataclass(frozen=True)
class Question:
    """A question and the session that decides about it."""

    id: str
    session: ada.Session

    def describe(self, *, is_limited: bool) -> Row:
        """Return the row that is written."""
        return {
            "question_id": self.id,
            "answer": self.session.answer,
            "n_samples": self.session.n_samples,
            "status": "limited" if is_limited else "answered",
        }


def answer_in_rounds(questions: Sequence[Question], process: Processor, total: int) -> list[Row]:
    """Sample, vote and ask the policy again, until it is content or the total is used up.

    Questions that the total has stopped keep the answer that they have, and are ``limited``.
    """
    left, is_open = total, dict.fromkeys(range(len(questions)), True)
    while any(is_open.values()):
        rows: list[Row] = []
        for number in [number for number, value in is_open.items() if value]:
            request = questions[number].session.ask()
            if request is None:
                is_open[number] = False
            elif len(rows) + request.n <= left:
                text = questions[number].session.question
                rows += [{"number": number, "question": text}] * request.n
        if not rows:
            break
        left -= len(rows)
        drawn: dict[int, list[ada.Sample]] = {}
        for row in process(ray.data.from_items(rows)).iter_rows():
            sample = ada.Sample(row["text"], mean_logprob=row["mean_logprob"])
            drawn.setdefault(row["number"], []).append(sample)
        for number, samples in drawn.items():
            questions[number].session.tell(samples)
    return [one.describe(is_limited=is_open[i]) for i, one in enumerate(questions)]


def make_processor(model: str, *, gpus: int, max_tokens: int, **engine: object) -> Processor:
    """Return Ray's vLLM stage; without GPUs each engine runs on one core."""
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    bundle = {"CPU": 1, "GPU": 1} if gpus else {"CPU": 1}
    config = vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs={"enable_prefix_caching": True, **engine},
        placement_group_config={"bundle_per_worker": bundle},
        concurrency=max(1, gpus),
        batch_size=64,
        should_continue_on_error=True,
        log_engine_metrics=False,  # vLLM's metrics need more than ray[data]
        chat_template_stage={"num_cpus": 0.25},
        tokenize_stage=False,  # vLLM does both itself
        detokenize_stage=False,
    )
    params = {"temperature": 0.7, "max_tokens": max_tokens, "logprobs": 0}
    return build_processor(
        config,
        preprocess=lambda row: {
            "number": row["number"],
            "messages": [{"role": "user", "content": row["question"]}],
            "sampling_params": params,
        },
        postprocess=read_sample,
    )


def read_sample(row: Row) -> Row:
    """Return the text and the mean log-probability; a row that failed is an empty sample."""
    tokens = row.get("generated_tokens")
    chosen = zip([] if tokens is None else tokens, row.get("logprobs") or [], strict=False)
    values = [float(known[token]["logprob"]) for token, known in chosen]
    return {
        "number": row["number"],
        "text": row.get("generated_text") or "",
        "mean_logprob": sum(values) / len(values) if values else None,
    }


def main() -> None:
    """Answer a file of questions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("questions")
    parser.add_argument("answers")
    parser.add_argument("--total", type=int, required=True)
    parser.add_argument("--policy", default="example")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--cpus", type=int, help="Start Ray here with so many; at least 4.")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--enforce-eager", action="store_true", help="Do not compile the model.")
    options = parser.parse_args()
    if options.cpus:
        ray.init(num_cpus=options.cpus)
    table = pq.read_table(options.questions)
    policy, budget = ada.load_policy(options.policy), options.total / len(table)
    questions = [
        Question(row["question_id"], policy.start(row["question"], budget=budget))
        for row in table.to_pylist()
    ]
    process = make_processor(
        options.model,
        gpus=options.gpus,
        max_tokens=options.max_tokens,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        enforce_eager=options.enforce_eager,
    )
    rows = answer_in_rounds(questions, process, options.total)
    pq.write_table(pa.Table.from_pylist(rows), options.answers)
    print(f"{len(rows)} answers, {sum(row['n_samples'] for row in rows)} samples")


if __name__ == "__main__":
    main()
