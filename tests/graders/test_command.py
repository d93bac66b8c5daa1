from __future__ import annotations

import gc
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from adacompute.core.errors import ConfigError, GraderError
from adacompute.graders.command import CommandGrader
from adacompute.graders.grader import Grades, grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a program and return the command that runs it."""

    def write(source: str) -> str:
        path = tmp_path / "a grader.py"
        path.write_text(f"import json, sys, time\n{source}")
        return f"{sys.executable} '{path}'"

    return write


@pytest.fixture
def asked(program: str) -> Iterator[CommandGrader]:
    with CommandGrader(program) as grader:
        yield grader


def test_the_program_extracts_and_compares(asked: CommandGrader) -> None:
    graded = grade(asked, ["It is Blue", "GREEN", "", None, "so blue"], "blue")
    assert graded == Grades(
        ["blue", "green", None, None, "blue"], [True, False, False, False, True]
    )


def test_the_program_is_started_once(script: Callable[[str], str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    source = f"""
open({str(log)!r}, "a").write("started ")
for line in sys.stdin:
    print(json.dumps({{"answer": "x"}}), flush=True)
"""
    with CommandGrader(script(source)) as grader:
        assert [grader.extract("text") for _ in range(20)] == ["x"] * 20
    assert log.read_text() == "started "


def test_any_text_passes_through(asked: CommandGrader) -> None:
    for text in ("a\nb", '"quoted"', "\u2028x", "\ud800", "é" * 10, "x" * 3_000_000):
        assert asked.extract(text) == text.split()[-1].lower()


def test_there_is_no_shell(script: Callable[[str], str]) -> None:
    source = """
for line in sys.stdin:
    print(json.dumps({"answer": " ".join(sys.argv[1:])}), flush=True)
"""
    with CommandGrader(f"{script(source)} '$HOME' ; ls") as grader:
        assert grader.extract("x") == "$HOME ; ls"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sys.exit('no licence')", r"ended with code 1.*no licence"),
        ("raise SystemExit(3)", r"ended with code 3; it printed nothing"),
        ("input(); sys.stderr.write('oh' * 500); sys.exit(2)", r"code 2; it printed '(oh){100}'$"),
        ("input(); print('garbage', flush=True); input()", "it printed 'garbage'"),
        ("input(); print('[' * 100000, flush=True); input()", r"it printed '\[{200}'$"),
        ("input(); print('{}', flush=True); input()", "'answer' is str or None"),
        ("input(); print('[1]', flush=True); input()", "'answer' is str or None"),
        ("input(); print('{\"answer\": 5}', flush=True); input()", "'answer' is str or None"),
        ('input(); print(\'{"answer": "a"}\\n{}\', flush=True); input()', "Extra data"),
        ("input(); sys.stdout.buffer.write(b'\\xff\\n'); sys.stdout.flush(); input()", "printed"),
        ("import os; os.close(1); time.sleep(60)", "closed its standard output"),
    ],
)
def test_a_failure_shows_what_the_program_printed(
    script: Callable[[str], str], source: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.graders.program._EXIT_TIMEOUT_S", 0.5)
    command = script(source)
    with CommandGrader(command) as grader, pytest.raises(GraderError, match=message) as caught:
        grader.extract("text")
    assert "a grader.py" in str(caught.value)


def test_a_silent_program_times_out(script: Callable[[str], str]) -> None:
    for source in ("time.sleep(60)", "input(); print('{', end='', flush=True); time.sleep(60)"):
        begun = time.monotonic()
        with (
            CommandGrader(script(source), timeout_s=0.3) as grader,
            pytest.raises(GraderError, match=r"no reply within 0\.3 s"),
        ):
            grader.extract("x" * 1_000_000)
        assert time.monotonic() - begun < 20


def test_an_endless_line_is_rejected(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.graders.program._MAX_LINE_BYTES", 100_000)
    command = script("while True: print('x' * 1000, end='')")
    with (
        CommandGrader(command) as grader,
        pytest.raises(GraderError, match="more than 100000 bytes"),
    ):
        grader.extract("x")


def test_a_reply_of_the_wrong_type_is_rejected(
    script: Callable[[str], str],
) -> None:
    command = script("input(); print(json.dumps({'equal': 1}), flush=True); input()")
    with CommandGrader(command) as grader, pytest.raises(GraderError, match="'equal' is bool"):
        grader.equal("a", "b")


def test_after_a_failure_the_program_is_started_again(script: Callable[[str], str]) -> None:
    command = script("""
line = json.loads(input())
print(json.dumps({"answer": "ok"}) if line["text"] == "good" else "bad", flush=True)
input()
""")
    with CommandGrader(command) as grader:
        with pytest.raises(GraderError):
            grader.extract("bad")
        assert grader.extract("good") == "ok"


def test_an_early_exit_is_reported(script: Callable[[str], str]) -> None:
    with CommandGrader(script('input(); print(\'{"answer": "a"}\', flush=True)')) as grader:
        assert grader.extract("x") == "a"
        assert grader._program._process is not None
        grader._program._process.process.wait(timeout=20)
        with pytest.raises(GraderError, match="ended with code 0"):
            grader.extract("y")


@pytest.mark.parametrize("command", ["", "   ", "'unbalanced"])
def test_an_invalid_command_is_rejected(command: str) -> None:
    with pytest.raises(ConfigError):
        CommandGrader(command)


def test_a_missing_program_is_named() -> None:
    grader = CommandGrader("/no/such/program --flag")
    with pytest.raises(GraderError, match=r"/no/such/program --flag.*No such file"):
        grader.extract("x")
    grader.close()


def test_threads_wait_for_each_other(asked: CommandGrader) -> None:
    found: list[str | None] = [None] * 40

    def ask(place: int) -> None:
        found[place] = asked.extract(f"it is {place}")

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [str(place) for place in range(len(found))]


def test_the_program_ends_when_closed_or_garbage_collected(program: str) -> None:
    grader = CommandGrader(program)
    grader.extract("x")
    assert grader._program._process is not None
    process = grader._program._process.process
    grader.close()
    grader.close()
    assert process.returncode == 0
    assert grader.extract("again") == "again"
    process = grader._program._process.process
    del grader
    gc.collect()
    assert process.returncode == 0


def test_a_program_that_does_not_end_is_killed(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.graders.program._EXIT_TIMEOUT_S", 0.2)
    grader = CommandGrader(
        script("input(); print('{\"answer\": null}', flush=True); time.sleep(60)")
    )
    assert grader.extract("x") is None
    assert grader._program._process is not None
    process = grader._program._process.process
    grader.close()
    assert process.returncode == -9
