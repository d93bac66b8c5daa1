"""Today: whether the live saving is true, and how soon a gateway falls back when answers get worse.

``python -m benchmarks.today OUT [--requests 600]`` fits a policy to 300 questions of a made-up
model, of which half are easy, and serves it in a gateway process with ``today_share = 0.5`` and
``fallback = "today"``. The official client sends requests with other questions, four at a time. At
first the model is as it was; halfway its answers become twice as long; at last they become worse:
it is right a third as often.

Every 100 requests before that, the intervals of ``adacompute spend`` are compared with what the
upstream itself counted for each request. Printed are the true and the live saving, the looks at
which the interval held the true one, the requests after the change until the fallback, and the
requests that were lost. It fails if an interval was wrong at the last look, if there was no
fallback within 200 requests, or if a request was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.stages.spend import sum_spend
from adacompute.storage.decisions import read_decisions
from test_support.gateways import free_port, wait_for
from test_support.scripted import ReceivedRequest, ScriptedReply, serve_scripted

N_TRAINING, N_SAMPLES, N_TODAY, PARALLEL, LOOK = 300, 16, 5, 4, 100
MAX_UNTIL_FALLBACK = 200
FIRST, STEP = 10_000, 3
"""Number of the first question, and the step of those that the policy is fitted to.

Numbers that are much larger or longer would be questions of another kind.
"""

MEAN_TOKENS, N_WRONG, EASY, HARD = 40, 6, 0.92, 0.5
JSON = [("Content-Type", "application/json")]
MODEL, VIRTUAL = "made-up", "saving"
CONFIG = """
[serve]
base_url = "{url}"
port = {port}
state_directory = "{out}/state"
decision_log = "answers"
log_level = "warning"
token_prices = "{out}/prices.toml"
probe = false
[serve.models.{virtual}]
bundle = "{out}/policy"
budget = {budget}
model = "{model}"
grader = "numeric"
accept_verdict = true
today_share = 0.5
fallback = "today"
"""
PRICES = f'[models."{MODEL}"]\ninput = 0\noutput = 1\n'


def write_question(number: int) -> str:
    """Return the text of a question."""
    return f"Problem {number}: what is the number of this riddle?"


@dataclass
class MadeUpModel:
    """Answers questions by their number, and counts what each request took."""

    length: float = 1.0
    quality: float = 1.0
    n_samples: Counter[str] = field(default_factory=Counter)
    n_tokens: Counter[str] = field(default_factory=Counter)
    random: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311

    def draw(self, number: int) -> tuple[str, int]:
        """Return a sample of a question, and its length in tokens."""
        share = (HARD if number % 2 else EASY) * self.quality
        is_right = self.random.random() < share
        answer = number if is_right else number + self.random.randint(1, N_WRONG)
        mean = MEAN_TOKENS * self.length * (1.5 if number % 2 else 0.5)
        return f"The answer is {answer}.", max(1, round(self.random.expovariate(1 / mean)))

    def reply(self, request: ReceivedRequest) -> ScriptedReply:
        """Answer a chat completion."""
        body = json.loads(request.body)
        number = int(re.findall(r"Problem (\d+)", request.body.decode())[-1])
        found = [self.draw(number) for _ in range(int(body.get("n") or 1))]
        name, n_tokens = request.values("x-request-id")[0], sum(tokens for _, tokens in found)
        self.n_samples[name] += len(found)
        self.n_tokens[name] += n_tokens
        choices = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, (text, _) in enumerate(found)
        ]
        usage = {"prompt_tokens": 9, "completion_tokens": n_tokens, "total_tokens": 9 + n_tokens}
        document = {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}
        return ScriptedReply(200, JSON, [json.dumps(document).encode()])


def fit(model: MadeUpModel, out: Path) -> float:
    """Fit a policy to samples of the model, compared with what is run today; return its budget."""
    if (known := out / "budget.txt").exists():
        return float(known.read_text())
    rows = []
    for number in range(FIRST, FIRST + STEP * N_TRAINING, STEP):
        for sample in range(N_SAMPLES):
            text, tokens = model.draw(number)
            row: dict[str, Any] = {"question_id": str(number)}
            row["question"] = write_question(number)
            row |= {"gold": str(number), "sample": sample, "completion": text}
            rows.append(row | {"completion_tokens": tokens})
    pq.write_table(pa.Table.from_pylist(rows), out / "samples.parquet")
    command = [sys.executable, "-m", "adacompute", "fit", str(out / "samples.parquet"), "--json"]
    command += ["--today", str(N_TODAY), "--grader", "numeric", "--out", str(out / "policy")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603 - ours
    known.write_text(str(json.loads(done.stdout)["budget"]))
    return float(known.read_text())


class Stream:
    """The requests of a client, and what became of them."""

    def __init__(self, port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        self._client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        self._slots = asyncio.Semaphore(PARALLEL)
        self.n_sent = 0
        self.n_lost = 0
        self.names: dict[str, str] = {}

    async def send(self, count: int) -> None:
        """Send requests, and wait for their answers."""
        first, self.n_sent = self.n_sent, self.n_sent + count
        await asyncio.gather(*map(self._send_one, range(first, first + count)))

    async def _send_one(self, place: int) -> None:
        name, text = f"r{place}", write_question(FIRST + place)
        message: Any = {"role": "user", "content": text}
        async with self._slots:
            try:
                answer = await self._client.chat.completions.with_raw_response.create(
                    model=VIRTUAL, messages=[message], extra_headers={"x-request-id": name}
                )
                self.names[answer.headers["x-adacompute-decision"]] = name
                if not answer.parse().choices[0].message.content:
                    self.n_lost += 1
            except openai.OpenAIError as error:
                print(f"lost: {error}")
                self.n_lost += 1


def find_truth(model: MadeUpModel, names: dict[str, str], log: Path) -> dict[str, float]:
    """Return the savings by what the upstream counted for requests of each kind."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for row in read_decisions(log, ("today", "fallback")).to_pylist():
        if row["fallback"] is None and row["id"] in names:
            kinds[row["today"]].append(names[row["id"]])

    def mean(counts: Counter[str], *, is_today: bool) -> float:
        return sum(counts[name] for name in kinds[is_today]) / len(kinds[is_today])

    return {
        unit: 1 - mean(counts, is_today=False) / mean(counts, is_today=True)
        for unit, counts in (("samples_used", model.n_samples), ("cost", model.n_tokens))
    }


async def look(model: MadeUpModel, stream: Stream, out: Path) -> dict[str, tuple[float, ...]]:
    """Return the true saving, the live one and its interval, by unit."""
    truth = find_truth(model, stream.names, out / "state" / "decisions")
    (row,) = sum_spend(out / "state")["savings"]
    ends = ("", "_low", "_high")
    return {
        unit: (truth[unit], *(float(row[f"saving_{unit}{end}"] or "nan") for end in ends))
        for unit in truth
    }


def _is_inside(truth: float, _: float, low: float, high: float) -> bool:
    return low <= truth <= high


async def run(model: MadeUpModel, port: int, out: Path, n: int) -> bool:
    """Send all requests, print what was found, and return whether it is as it should be."""
    stream, looks = Stream(port), list[dict[str, tuple[float, ...]]]()
    for done in range(0, n, LOOK):
        model.length = 1.0 if done < n / 2 else 2.0
        await stream.send(LOOK)
        looks.append(await look(model, stream, out))
    held = {unit: [_is_inside(*one[unit]) for one in looks] for unit in looks[0]}
    for unit, (truth, live, low, high) in looks[-1].items():
        shown = f"{live:.1%} ({low:.1%} to {high:.1%}), true {truth:.1%}"
        print(f"saving of {unit}: {shown}; held at {sum(held[unit])} of {len(looks)} looks")
    model.quality, before = 1 / 3, set(stream.names)
    await stream.send(2 * MAX_UNTIL_FALLBACK)
    rows = read_decisions(out / "state" / "decisions", ("fallback",)).to_pylist()
    after = [row["fallback"] for row in rows if row["id"] not in before]
    n_until = next((i for i, reason in enumerate(after) if reason), len(after))
    print(f"fallback ({after[n_until:][:1]}) after {n_until} requests of the worse model")
    print(f"by the policy after that: {after[n_until:].count(None)}")
    print(f"lost: {stream.n_lost} of {stream.n_sent} requests")
    is_held = all(one[-1] for one in held.values())
    return is_held and n_until <= MAX_UNTIL_FALLBACK and stream.n_lost == 0


def main() -> None:
    """Fit, serve, send and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=600)
    given = parser.parse_args()
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model, port = MadeUpModel(), free_port()
    budget = fit(model, out)
    print(f"a budget of {budget:g} samples, {N_TODAY} today")
    (out / "prices.toml").write_text(PRICES)
    with serve_scripted() as upstream:
        upstream.answer(model.reply)
        names = {"url": upstream.base_url, "port": port, "out": out, "budget": budget}
        text = CONFIG.format(**names, virtual=VIRTUAL, model=MODEL)
        (out / "gateway.toml").write_text(text)
        command = [sys.executable, "-m", "adacompute", "serve", "--config"]
        process = subprocess.Popen([*command, str(out / "gateway.toml")])  # noqa: S603 - ours
        try:
            wait_for(f"http://127.0.0.1:{port + 1}/ready")
            is_right = asyncio.run(run(model, port, out, given.requests))
        finally:
            process.terminate()
            process.wait()
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
