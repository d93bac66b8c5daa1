"""The command line keeps its contract: what it prints where, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import adacompute
from adacompute.cli import main as cli
from adacompute.cli.options import Setting, option_key
from adacompute.spending.caps.replica import set_cap_spent
from adacompute.spending.sqlite_register import SqliteRegister
from adacompute.stages import solve as solve_stage
from adacompute.storage.calls import CallFile

Rows = list[dict[str, Any]]
Call = Callable[..., Any]
Execute = Callable[..., Any]
Examples = dict[str, tuple[object, ...]]
COMMANDS = cli.list_commands()
MAX_OPTIONS = 13


EVALUATE = ("--budgets", "1.5,2", "--levels", "1,2", "--policies", "fixed,mixture,oracle")


def spent(place: Path) -> Path:
    """Return the account of a gateway that made one call."""
    start = {"call": "1", "upstream_model": "m", "purpose": "vote"}
    CallFile(place).append({**start, "started_at": 1.0, "max_prompt_tokens": 9, "max_cost": 0.5})
    return place


def capped(place: Path) -> Path:
    """Return the configuration of a gateway that spent 5 of 9 samples."""
    place.mkdir()
    config = place / "gateway.toml"
    config.write_text(
        '[serve]\nbase_url = "http://127.0.0.1:9/v1"\nstate_directory = "."\n'
        '[[serve.caps]]\namount = 9\nunit = "samples"\nperiod = "all"\n'
    )

    async def spend() -> None:
        register = SqliteRegister(place / "accounts.sqlite")
        await set_cap_spent(register, "total/samples/all", 5)
        await register.close()

    asyncio.run(spend())
    return config


def batch_questions(place: Path) -> Path:
    """Return a file of questions for a batch."""
    path = place / "batch.jsonl"
    path.write_text("\n".join(f'{{"question": "What is {i} + 1?"}}' for i in range(5)) + "\n")
    return path


@pytest.fixture
def every_command(run: Path, source: Path, trained: tuple[Path, Path]) -> Examples:
    """Return an example of every command."""
    place = run.parent
    questions = place / "questions.csv"
    questions.write_text("question_id,question,gold\nq1,What is 1 + 1?,2\n")
    upstream = ("--base-url", "http://127.0.0.1:9/v1", "--model", "none", "--grader", "numeric")
    return {
        "collect": (questions, "--run", place / "collected", *upstream, "--dry-run"),
        "solve": (source, "--budget", "1.5", "--levels", "1,2"),
        "evaluate": (run, *EVALUATE),
        "serve": ("--bundle", "example", "--base-url", upstream[1], "--budget", "2", "--check"),
        "spend caps": (capped(place / "gateway"),),
        "batch": (
            *(batch_questions(place), "--bundle", "example", "--out", place / "batch"),
            *("--total", "20", "--plan-only"),
        ),
        "spend": (spent(place / "calls"),),
        "report": (run, "--out", place / "report.html", "--policy", "adaptive-consistency"),
        "fit": (
            trained[0].with_name("many.parquet"),
            *("--out", place / "fitted", "--budget", "1"),
            *("--config", "levels=1,2", "--config", "policy=mixture"),
        ),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_every_option(call: Call, name: str) -> None:
    command = COMMANDS[name]
    called = call(name, "--help")
    assert called.code == 0
    assert command.help
    assert command.help.splitlines()[0] in called.out
    options = [option for option in command.params if isinstance(option, click.Option)]
    has_settings = any(isinstance(option, Setting) for option in options)
    names = {option.opts[0] for option in options if not isinstance(option, Setting)}
    assert "--json" in names
    assert ("--config" in names) == has_settings or name == "serve"
    assert len(names) <= MAX_OPTIONS
    for option in options:
        assert option.help
        assert option.help.endswith(".")
        spellings = [option_key(option)] if isinstance(option, Setting) else option.opts
        for spelling in spellings:
            assert spelling in called.out.replace("-\n", "-")


BASE_ONLY = """
for name in ("xgboost", "math_verify", "aiohttp",
             "starlette", "uvicorn", "httptools", "redis", "ray", "jinja2", "matplotlib"):
    sys.modules[name] = None
"""


@pytest.mark.slow
def test_a_missing_extra_is_one_sentence_of_every_command(
    every_command: Examples, execute: Execute
) -> None:
    lacking = {}
    for name, words in every_command.items():
        called = execute(name, *words, before=BASE_ONLY)
        if called.code:
            lacking[name] = called.refused().partition("adacompute[")[2].partition("]")[0]
    assert lacking.pop("serve") == "serve"
    assert lacking.pop("report") == "report"
    assert set(lacking.values()) <= {"serve", "router"}


def test_help_and_version_exit_with_0(call: Call) -> None:
    for spelling in ("-h", "--help"):
        called = call(spelling)
        assert called.code == 0
        assert all(f"  {name} " in called.out for name in cli.cli.commands)
    assert call("--version") == (0, f"adacompute {adacompute.__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_json_prints_one_document_and_nothing_else(
    call: Call, every_command: Examples, name: str
) -> None:
    document = call(name, *every_command[name], "--json").document
    assert isinstance(document, dict)


def test_documents_have_the_keys_of_the_contract(call: Call, every_command: Examples) -> None:
    examples = every_command
    solved = call("solve", *examples["solve"], "--json").document
    whole = {"price", "cost", "utility", "bound", "gap", "shares", "split"}
    assert whole | {"mixed_cost", "mixed_utility"} <= solved.keys()
    assert solved["shares"].keys() == {"1", "2"}
    scores = call("evaluate", *examples["evaluate"], "--json").document
    for row in scores["rows"]:
        assert {
            "policy",
            "budget",
            "cost",
            "accuracy",
            "accuracy_low",
            "accuracy_high",
        } <= row.keys()
        assert {"difference", "difference_low", "difference_high"} <= row.keys()
        assert {"headroom", "relative_gain"} <= row.keys()


@pytest.mark.slow
def test_installed_command_works_as_a_process(source: Path, execute: Execute) -> None:
    command = Path(sys.executable).with_name("adacompute")
    done = subprocess.run(
        [command, "solve", source, "--budget", "2", "--json"], capture_output=True, check=True
    )
    assert (json.loads(done.stdout)["questions"], done.stderr) == (12, b"")
    assert execute("solve", source, "--budget", "0.5").refused()
    assert execute("solve", source).misused()
    done = subprocess.run(
        [sys.executable, "-m", "adacompute", "--version"], capture_output=True, check=True
    )
    assert done.stdout.decode() == f"adacompute {adacompute.__version__}\n"


def test_interrupt_exits_with_130(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stage, "find_cutoff", _interrupt)
    assert call("solve", run, "--budget", "1").refused(130) == "adacompute: stopped"


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Commands:"),
        (("dance",), "No such command 'dance'"),
        (("solve",), "Missing argument 'SOURCE'"),
        (("solve", "run"), "Missing option '--budget'"),
        (("solve", "run", "--budget", "much"), "'much' is not a valid float"),
        (("solve", "run", "--columns", "a=b,a=c"), "gives one name twice"),
        (("solve", "run", "--levels", "1,x"), "'1,x' is not a list of whole numbers"),
        (("solve", "run", "--levels", ""), "'' is not a list of whole numbers"),
        (("solve", "run", "--levels", "1.5"), "'1.5' is not a list of whole numbers"),
        (("solve", "run", "--levels", "9" * 5000), "is not a list of whole numbers"),
        (("serve", "--unsure", "loud"), "'loud' is not one of"),
        (("evaluate", "run", "--budgets", "1,,2"), "'1,,2' is not a list of numbers"),
        (("evaluate", "run", "--config", "seed=x"), "'x' is not a valid integer"),
        (("evaluate", "run", "--nonsense"), "No such option"),
        (("fit", "file"), "Missing option '--out'"),
    ],
)
def test_usage_errors_exit_with_2(call: Call, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in call(*arguments).misused()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("solve", "--budget", "2", "--levels", "2,1"), "levels"),
        (("solve", "--budget", "2", "--levels", "0,1"), "levels"),
        (("solve", "--budget", "2", "--levels", f"1,{10**30}"), "levels"),
        (("evaluate", "--levels", "4,2"), "levels"),
        (("evaluate", "--policies", "psychic"), "'psychic'"),
        (("evaluate", "--policies", ""), "''"),
        (("evaluate", "--budgets", "nan"), "nan"),
        (("evaluate", "--budgets", "inf"), "inf"),
        (("evaluate", "--budgets", "0"), " 0"),
        (("evaluate", "--budgets=-2"), "-2"),
        (("evaluate", "--unit", "bananas"), "'bananas'"),
        (("evaluate", "--config", "seed=-1"), "seed"),
        (("solve", "--budget", "nan"), "nan"),
        (("solve", "--budget", "inf"), "inf"),
        (("solve", "--budget", "2", "--unit", "money"), "prices"),
    ],
)
def test_invalid_option_values_exit_with_2(
    call: Call, run: Path, arguments: tuple[str, ...], expected: str
) -> None:
    command, *options = arguments
    assert expected in call(command, run, *options).refused(2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("solve", "--budget", "0.5"), "budget of 0.5 is below 1"),
        (("solve", "--budget", "0"), "below 1"),
        (("solve", "--budget=-4"), "-4"),
        (("evaluate", "--levels", "5,6"), "0 of the levels 5, 6,"),
        (("evaluate", "--levels", ",".join(map(str, range(9, 2000)))), "15, 16, …, and"),
        (("evaluate", "--levels", "1"), "1 of the levels 1,"),
        (("evaluate", "--levels", "1,5"), "1 of the levels 1, 5,"),
    ],
)
def test_failures_exit_with_1(
    call: Call, run: Path, arguments: tuple[str, ...], expected: str
) -> None:
    command, *options = arguments
    assert expected in call(command, run, *options).refused()


@pytest.mark.parametrize("what", ["missing", "file", "empty", "below a file"])
def test_path_that_is_no_run_is_refused(
    call: Call, source: Path, tmp_path: Path, what: str
) -> None:
    (tmp_path / "empty").mkdir()
    place = tmp_path / what
    if what == "file":
        place = source
    elif what == "below a file":
        place = source / "run"
    sentence = call("evaluate", place, *EVALUATE).refused()
    assert ("is a file, not a run" if what == "file" else "has no") in sentence
    assert str(place) in sentence


@pytest.mark.parametrize("what", ["missing", "directory", "text", "cut", "nothing"])
def test_path_that_is_no_sample_file_is_refused(
    call: Call, source: Path, tmp_path: Path, what: str
) -> None:
    path = tmp_path / what
    if what == "directory":
        path.mkdir()
    elif what != "missing":
        whole = source.read_bytes()
        contents = {"text": b"question,answer\n1,2\n", "cut": whole[: len(whole) // 2]}
        path.write_bytes(contents.get(what, b""))
    assert str(path) in call("solve", path, "--budget", "1").refused()
    new = tmp_path / "new"
    assert str(path) in call("fit", path, "--budget", "1", "--out", new).refused()
    assert not new.exists()
