"""Grading never holds the event loop, whatever the grader does."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adacompute.core.errors import GraderError
from adacompute.core.types import make_levels
from adacompute.graders.command import CommandGrader
from adacompute.graders.grader import Grader
from adacompute.models.messages import Sample
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.sampling.circuit_breaker import CircuitBreaker
from adacompute.sampling.grading import Grading
from adacompute.sampling.session import Session

POLICY = RulePolicy("fixed", make_levels((1, 9)), (FixedRule(9),), PriceSchedule((0.1,)))

# It stalls on the text "stall", and answers with the text otherwise.
PROGRAM = """
import json, sys, time
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "stall":
        time.sleep(60)
    print(json.dumps({"answer": text}), flush=True)
"""


class Mine:
    """A grader that is a Python object: it waits for an event that the text names."""

    name = "mine"

    def __init__(self, **events: threading.Event) -> None:
        self.events = events

    def extract(self, text: str) -> str | None:
        if text == "fail":
            raise GraderError("as told")
        if text in self.events:
            self.events[text].wait(20)
        return text

    def equal(self, left: str, right: str) -> bool:
        return left == right


@pytest.fixture
def stalling(tmp_path: Path) -> str:
    path = tmp_path / "stalling.py"
    path.write_text(PROGRAM)
    return f"{sys.executable} {path}"


def session(grader: Grader) -> Session:
    return Session(POLICY, "?", price=0.1, grader=grader)


async def values(grading: Grading, *texts: str) -> list[str | None]:
    on = session(grading.grader)
    return [(await grading.parse(on, Sample(text))).value for text in texts]


def test_failures_are_unparsed_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    reasons: list[str] = []
    grading = Grading(Mine(), on_failure=reasons.append)
    assert asyncio.run(values(grading, "a", "fail", "b", "fail")) == ["a", None, "b", None]
    assert reasons == ["error", "error"]
    assert len(caplog.records) == 2
    grading.close()


def test_a_stalled_program_costs_a_few_time_limits_and_then_nothing(stalling: str) -> None:
    reasons: list[str] = []
    breaker = CircuitBreaker(max_failures=3, pause_s=60.0)
    grader = CommandGrader(stalling, timeout_s=0.3)
    grading = Grading(grader, timeout_s=0.5, breaker=breaker, on_failure=reasons.append)

    async def main() -> float:
        await values(grading, *["stall"] * 3)
        begun = time.monotonic()
        assert await values(grading, *["stall", "a"] * 500) == [None] * 1000
        return time.monotonic() - begun

    assert asyncio.run(main()) < 0.5
    assert reasons == ["error"] * 3 + ["circuit_open"] * 1000
    grading.close()


def test_a_program_that_works_again_is_used_again(stalling: str) -> None:
    breaker = CircuitBreaker(max_failures=2, pause_s=0.2)
    grading = Grading(CommandGrader(stalling, timeout_s=0.5), timeout_s=5, breaker=breaker)

    async def main() -> list[float]:
        assert await values(grading, "stall", "stall", "a") == [None] * 3
        taken = []
        end = time.monotonic() + 20
        while time.monotonic() < end:
            begun = time.monotonic()
            found = await values(grading, "a")
            taken.append(time.monotonic() - begun)
            if found == ["a"]:
                return taken
            await asyncio.sleep(0.05)
        return []

    taken = asyncio.run(main())
    assert len(taken) > 2
    assert max(taken[:-1]) < 0.1  # nobody waited for the probe
    grading.close()


def test_samples_that_wait_when_the_circuit_opens_do_not_wait_on(stalling: str) -> None:
    reasons: list[str] = []
    grader = CommandGrader(stalling, timeout_s=1.0)
    breaker = CircuitBreaker(max_failures=1, pause_s=60)
    grading = Grading(grader, timeout_s=30.0, breaker=breaker, on_failure=reasons.append)

    async def main() -> float:
        begun = time.monotonic()
        await asyncio.gather(*(values(grading, "stall") for _ in range(50)))
        return time.monotonic() - begun

    assert asyncio.run(main()) < 5
    assert sorted(reasons) == ["circuit_open"] * 49 + ["error"]
    grading.close()


def test_the_queue_is_bounded() -> None:
    release = threading.Event()
    reasons: list[str] = []
    grading = Grading(Mine(wait=release), max_queue=10, on_failure=reasons.append)

    async def main() -> list[list[str | None]]:
        tasks = [asyncio.create_task(values(grading, "wait")) for _ in range(30)]
        await asyncio.sleep(0.1)
        assert reasons == ["queue_full"] * 20
        release.set()
        return await asyncio.gather(*tasks)

    assert sum(found == ["wait"] for found in asyncio.run(main())) == 10
    grading.close()


def test_a_grader_object_that_never_returns_keeps_neither_the_loop_nor_the_process() -> None:
    never = threading.Event()
    grading = Grading(Mine(hang=never), timeout_s=2.0)

    async def main() -> None:
        assert await values(grading, "hang", "a", "hang", "b") == [None, "a", None, "b"]

    begun = time.monotonic()
    asyncio.run(main())  # it would wait for the threads of its own executor
    assert time.monotonic() - begun < 15
    grading.close()


def test_closing_cancels_what_waits(stalling: str) -> None:
    grading = Grading(CommandGrader(stalling), timeout_s=30)

    async def main() -> float:
        task = asyncio.create_task(values(grading, "stall"))
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        await asyncio.to_thread(grading.close)
        await asyncio.wait({task})
        return time.monotonic() - begun

    assert asyncio.run(main()) < 3


def test_math_needs_its_process_only_for_mathematics() -> None:
    pytest.importorskip("math_verify")
    from adacompute.graders.math import MathGrader

    grader = MathGrader()
    grading = Grading(grader, timeout_s=60)

    async def main() -> list[str | None]:
        on = session(grader)
        texts = ["The answer is 7.", r"\boxed{07}", r"\boxed{8}"]
        found = []
        for text in texts:
            on.ask()
            parsed = await grading.parse(on, Sample(text))
            on.tell([parsed])
            found.append(parsed.value)
        pids = [grader._program.pid]
        found.append((await grading.parse(on, Sample(r"\boxed{\frac{14}{2}}"))).value)
        pids.append(grader._program.pid)
        assert [pid is None for pid in pids] == [True, False]
        return found

    assert asyncio.run(main()) == ["7", "7", "8", "7"]
    grading.close()


def test_a_program_is_killed_with_everything_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"import time, os; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    source = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    path = tmp_path / "parent.py"
    path.write_text(source)
    grader = CommandGrader(f"{sys.executable} {path}", timeout_s=3)
    with pytest.raises(GraderError, match="no reply"):
        grader.extract("x")
    assert _ends(int(json.loads(note.read_text())))


def _ends(pid: int, clock: Callable[[], float] = time.monotonic) -> bool:
    end = clock() + 5
    while clock() < end:
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return True
        time.sleep(0.02)
    return False
