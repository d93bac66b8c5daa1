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
from adacompute.stages.research import estimate as estimate_stage
from adacompute.storage.calls import CallFile

Rows = list[dict[str, Any]]
Call = Callable[..., Any]
Execute = Callable[..., Any]
Population = Callable[..., Rows]
Write = Callable[[Path, Rows], Path]
Examples = dict[str, tuple[object, ...]]
COMMANDS = cli.list_commands()
MAX_OPTIONS, MAX_RESEARCH_OPTIONS = 13, 20


EVALUATE = ("--budgets", "1.5,2", "--levels", "1,2", "--policies", "fixed,mixture,oracle")


OFFLINE = [name for name in COMMANDS if name != "probe"]
"""Commands that need no server; tests/stages/test_collect.py runs the others against one."""


def spent(place: Path) -> Path:
    """Return the account of a gateway that made one call."""
    start = {"call": "1", "client": "a", "upstream_model": "m", "purpose": "vote"}
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
    """Return an example of every command that needs no server."""
    place = run.parent
    questions = place / "questions.csv"
    questions.write_text("question_id,question,gold\nq1,What is 1 + 1?,2\n")
    upstream = ("--base-url", "http://127.0.0.1:9/v1", "--model", "none", "--grader", "numeric")
    return {
        "collect": (questions, "--run", place / "collected", *upstream, "--dry-run"),
        "research import": (source, "--run", place / "imported"),
        "research grade": (run, "--grader", "numeric"),
        "research estimate": (run, "--levels", "1,2"),
        "research solve": (run, "--budget", "1.5"),
        "research arms": (run, "--config", "levels=1,2", "--unit", "samples"),
        "research train": (
            run,
            "--policy",
            "mixture",
            "--out",
            place / "bundle",
            "--levels",
            "1,2",
        ),
        "research calibrate": (trained[0], "--bundle", trained[1], "--budget", "1"),
        "evaluate": (run, *EVALUATE),
        "serve": ("--bundle", "example", "--base-url", upstream[1], "--budget", "2", "--check"),
        "spend caps": (capped(place / "gateway"),),
        "batch": (
            *(batch_questions(place), "--bundle", "example", "--out", place / "batch"),
            *("--total", "20", "--plan-only"),
        ),
        "spend": (spent(place / "calls"),),
        "report": (run, "--out", place / "report.html", "--policy", "early-stopping"),
        "demo": (source,),
        "fit": (
            trained[0].with_name("many.parquet"),
            *("--out", place / "fitted", "--budget", "1"),
            *("--config", "levels=1,2", "--config", "policy=mixture"),
        ),
    }


def test_every_command_has_an_example(every_command: Examples) -> None:
    assert every_command.keys() == set(OFFLINE)


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
    assert len(names) <= (MAX_RESEARCH_OPTIONS if "research" in name else MAX_OPTIONS)
    for option in options:
        assert option.help
        assert option.help.endswith(".")
        spellings = [option_key(option)] if isinstance(option, Setting) else option.opts
        for spelling in spellings:
            assert spelling in called.out.replace("-\n", "-")


BASE_ONLY = """
for name in ("xgboost", "onnx", "onnxruntime", "math_verify", "aiohttp",
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


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (("reproduce", "a", "--unknown"), "python -m reproduction RUN… --out DIR"),
        (("evaluate", "a", "--protocol", "paper"), "python -m reproduction evaluate RUN"),
        (("evaluate", "--protocol=held-out"), "python -m reproduction evaluate RUN"),
        (("train", "run", "--policy", "mixture"), "use adacompute research train"),
        (("caps", "gateway.toml"), "use adacompute spend caps"),
    ],
)
def test_what_moved_out_of_the_package_is_named(
    call: Call, arguments: tuple[str, ...], new: str
) -> None:
    assert new in call(*arguments).misused()


def test_help_and_version_exit_with_0(call: Call) -> None:
    for spelling in ("-h", "--help"):
        called = call(spelling)
        assert called.code == 0
        assert all(f"  {name} " in called.out for name in cli.cli.commands)
    assert call("--version") == (0, f"adacompute {adacompute.__version__}\n", "")


def test_help_fits_80_columns_with_whole_summaries(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines[1:])
    listed = [line.split()[0] for line in lines[lines.index("Commands:") + 1 :]]
    assert listed == list(cli.cli.commands)
    assert len(listed) <= 10


@pytest.mark.parametrize("name", [*COMMANDS, "", "research", "spend"])
def test_help_shows_an_example_first_and_fits_a_screen(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call(*name.split(), "--help").out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    first = next(line.strip() for line in lines[3:] if line)
    assert first.startswith(f"adacompute {name}".strip())


@pytest.mark.parametrize("name", OFFLINE)
def test_json_prints_one_document_and_nothing_else(
    call: Call, every_command: Examples, name: str
) -> None:
    document = call(name, *every_command[name], "--json").document
    assert isinstance(document, dict)


@pytest.mark.parametrize("name", OFFLINE)
def test_without_json_a_table_is_printed(call: Call, every_command: Examples, name: str) -> None:
    called = call(name, *every_command[name])
    assert (called.code, called.err) == (0, "")
    assert "│" in called.out
    with pytest.raises(json.JSONDecodeError):
        json.loads(called.out)


def test_documents_have_the_keys_of_the_contract(call: Call, every_command: Examples) -> None:
    examples = every_command
    counts = call("research import", *examples["research import"], "--json").document
    assert {"questions", "samples", "unparsed", "correct"} <= counts.keys()
    graded = call("research grade", *examples["research grade"], "--json").document
    assert {"samples", "unparsed", "correct"} <= graded.keys()
    estimated = call("research estimate", *examples["research estimate"], "--json").document
    assert [row["level"] for row in estimated["levels"]] == [1, 2]
    assert all({"utility", "standard_error"} <= row.keys() for row in estimated["levels"])
    solved = call("research solve", *examples["research solve"], "--json").document
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
    assert (
        call("research train", *examples["research train"], "--json").document["policy"]
        == "mixture"
    )


@pytest.mark.slow
def test_rows_of_learned_routers_have_extra_keys(call: Call, run: Path) -> None:
    options = ("--config", "budgets=1.5", "--levels", "1,2", "--policies", "router,value-router")
    rows = call("evaluate", run, *options, "--json").document["rows"]
    assert [row["policy"] for row in rows] == ["router", "value-router"]
    for row in rows:
        assert {"imitation", "oracle_gap", "regret", "regret_bound"} <= row.keys()


@pytest.mark.slow
def test_installed_command_works_as_a_process(
    source: Path, tmp_path: Path, execute: Execute
) -> None:
    run = tmp_path / "run"
    command = Path(sys.executable).with_name("adacompute")
    done = subprocess.run(
        [command, "research", "import", source, "--run", run, "--json"],
        capture_output=True,
        check=True,
    )
    assert (json.loads(done.stdout)["questions"], done.stderr) == (12, b"")
    assert (
        execute("research estimate", run, "--levels", "1,4", "--json").document["questions"] == 12
    )
    assert execute("research solve", run, "--budget", "0.5").refused()
    assert execute("research solve", run).misused()
    done = subprocess.run(
        [sys.executable, "-m", "adacompute", "--version"], capture_output=True, check=True
    )
    assert done.stdout.decode() == f"adacompute {adacompute.__version__}\n"


def test_interrupt_exits_with_130(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_stage, "estimate", _interrupt)
    assert call("research estimate", run, "--levels", "1").refused(130) == "adacompute: stopped"


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Commands:"),
        (("dance",), "No such command 'dance'"),
        (("research solve",), "Missing argument 'DIR'"),
        (("research solve", "run"), "Missing option '--budget'"),
        (("research solve", "run", "--budget", "much"), "'much' is not a valid float"),
        (("research estimate", "run", "--method", "guess"), "'guess' is not one of"),
        (
            ("research estimate", "run", "--levels", "1,x"),
            "'1,x' is not a list of whole numbers",
        ),
        (("research estimate", "run", "--levels", ""), "'' is not a list of whole numbers"),
        (
            ("research estimate", "run", "--levels", "1.5"),
            "'1.5' is not a list of whole numbers",
        ),
        (("research estimate", "run", "--levels", "9" * 5000), "is not a list of whole numbers"),
        (("research estimate", "run", "--config", "vote=loud"), "'loud' is not one of"),
        (("evaluate", "run", "--budgets", "1,,2"), "'1,,2' is not a list of numbers"),
        (("evaluate", "run", "--config", "seed=x"), "'x' is not a valid integer"),
        (("evaluate", "run", "--nonsense"), "No such option"),
        (("research import", "file"), "Missing option '--run'"),
        (("research grade", "run"), "give --grader to grade a run"),
        (("research train", "run", "--policy", "mixture"), "Missing option '--out'"),
    ],
)
def test_usage_errors_exit_with_2(call: Call, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in call(*arguments).misused()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("research estimate", "--levels", "2,1"), "levels"),
        (("research estimate", "--levels", "0,1"), "levels"),
        (("research estimate", "--levels", f"1,{10**30}"), "levels"),
        (("evaluate", "--levels", "4,2"), "levels"),
        (("evaluate", "--policies", "psychic"), "'psychic'"),
        (("evaluate", "--policies", ""), "''"),
        (("evaluate", "--budgets", "nan"), "nan"),
        (("evaluate", "--budgets", "inf"), "inf"),
        (("evaluate", "--budgets", "0"), " 0"),
        (("evaluate", "--budgets=-2"), "-2"),
        (("evaluate", "--unit", "bananas"), "'bananas'"),
        (("evaluate", "--config", "features=tea"), "'tea'"),
        (("evaluate", "--config", "seed=-1"), "seed"),
        (("research solve", "--budget", "nan"), "nan"),
        (("research solve", "--budget", "inf"), "inf"),
        (("research solve", "--budget", "2", "--unit", "money"), "prices"),
        (("research grade", "--grader", "tarot"), "'tarot'"),
        (("research grade", "--grader", "cmd:"), "needs a command"),
        (("research train", "--policy", "psychic", "--out", "bundle"), "'psychic'"),
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
        (("research solve", "--budget", "0.5"), "budget of 0.5 is below 1"),
        (("research solve", "--budget", "0"), "below 1"),
        (("research solve", "--budget=-4"), "-4"),
        (("research estimate", "--levels", "1,5"), "need 5 samples"),
        (("evaluate", "--levels", "5,6"), "0 of the levels 5, 6,"),
        (("evaluate", "--levels", ",".join(map(str, range(9, 2000)))), "15, 16, …, and"),
        (("evaluate", "--levels", "1"), "1 of the levels 1,"),
        (("evaluate", "--levels", "1,5"), "1 of the levels 1, 5,"),
        (("research grade", "--grader", "cmd:false"), "the grader 'cmd:false' failed"),
        (("research grade", "--grader", "cmd:/no/such/program"), "failed"),
    ],
)
def test_failures_exit_with_1(
    call: Call, run: Path, arguments: tuple[str, ...], expected: str
) -> None:
    command, *options = arguments
    assert expected in call(command, run, *options).refused()


def test_huge_budget_is_accepted(call: Call, run: Path) -> None:
    assert call("research solve", run, "--budget", "1e300", "--json").document["cost"] <= 4.0
    rows = call("evaluate", run, *EVALUATE, "--budgets", "1e300", "--json").document["rows"]
    assert all(row["cost"] <= 4.0 + 1e-9 for row in rows)


@pytest.mark.parametrize(
    "name", ["research grade", "research estimate", "research solve", "evaluate", "research train"]
)
@pytest.mark.parametrize("what", ["missing", "file", "empty", "below a file"])
def test_path_that_is_no_run_is_refused(
    call: Call, every_command: Examples, source: Path, tmp_path: Path, name: str, what: str
) -> None:
    (tmp_path / "empty").mkdir()
    place = tmp_path / what
    if what == "file":
        place = source
    elif what == "below a file":
        place = source / "run"
    _, *options = every_command[name]
    sentence = call(name, place, *options).refused()
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
    for arguments in (("research import", path, "--run", tmp_path / "new"), ("demo", path)):
        assert str(path) in call(*arguments).refused()
    assert not (tmp_path / "new").exists()
