"""The command line keeps its contract: what it prints where, its exit codes, its one sentence."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import adacompute
from adacompute.cli import main as cli
from adacompute.cli import output
from adacompute.features.text import FEATURE_SETS
from adacompute.stages import estimate as estimate_stage
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run
from adacompute.storage import store
from adacompute.storage.decisions import DecisionLog

Rows = list[dict[str, Any]]
COMMANDS = cli.cli.commands


class Called(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Call = Callable[..., Called]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """Return how the command line is called in this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["adacompute", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Called(ended.value.code, *capsys.readouterr())

    return run


def execute(*arguments: object, before: str = "", **environment: str) -> Called:
    """Call the command line in a process of its own, after some lines of Python."""
    code = f"import sys\n{before}\nfrom adacompute.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    return Called(done.returncode, done.stdout, done.stderr)


def refused(called: Called, code: int = 1) -> str:
    """Return the one sentence with which a command failed."""
    assert (called.code, called.out) == (code, ""), called
    (sentence,) = called.err.strip().splitlines()
    assert sentence.startswith("adacompute: ")
    assert sentence.isprintable()
    return sentence


def misused(called: Called) -> str:
    """Return what a command said to wrong use."""
    assert (called.code, called.out) == (2, ""), called
    assert "Traceback" not in called.err
    return called.err


def population(questions: int = 12, samples: int = 4, **columns: Any) -> Rows:
    """Return samples of questions of which a third each is easy, fair and hopeless."""
    kinds = ["7777", "7897", "8989"]
    return [
        {
            "question_id": f"q{question}",
            "question": f"What is {question} and {question}?",
            "gold": "7",
            "sample": number,
            "answer": kinds[question % 3][number % 4],
            "correct": kinds[question % 3][number % 4] == "7",
            "completion_chars": 10 + number,
            "completion_tokens": 3 + number,
            "mean_logprob": -0.1 * number,
            "latency_s": 1.0 + number / 4,
            **columns,
        }
        for question in range(questions)
        for number in range(samples)
    ]


def write(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source.parquet", population())


@pytest.fixture
def run(tmp_path: Path, source: Path) -> Path:
    """Return a run that was imported and estimated."""
    place = tmp_path / "run"
    import_samples(source, place)
    estimate_stage.estimate_run(place, levels=(1, 2, 4))
    return place


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is made in passing where pytest clears it away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield


EVALUATE = ("--budgets", "1.5,2", "--levels", "1,2", "--policies", "fixed,mixture,oracle")


OFFLINE = [name for name in COMMANDS if name != "probe"]
"""Commands that need no server; tests/stages/test_collect.py runs the others against one."""


@cache
def trained() -> tuple[Path, Path]:
    """Return a run that is large enough to calibrate on, and a bundle of it."""
    place = Path(tempfile.mkdtemp())
    import_samples(write(place / "many.parquet", population(45)), place / "run")
    train_run(place / "run", policy="mixture", out=place / "bundle", levels=(1, 2))
    return place / "run", place / "bundle"


@cache
def logged() -> Path:
    """Return a log of one decision, drawn to the largest level."""
    features = [0.0] * len(FEATURE_SETS["words"])
    place = Path(tempfile.mkdtemp())
    decision = {"id": "d", "time": 0.0, "key": 1, "features": features, "answers": [0] * 16}
    DecisionLog(place).append({**decision, "samples_used": 1, "audit": True, "shadow": False})
    return place


def every_command(run: Path, source: Path) -> dict[str, tuple[object, ...]]:
    """Return an example of every command that needs no server."""
    place = run.parent
    questions = place / "questions.csv"
    questions.write_text("question_id,question,gold\nq1,What is 1 + 1?,2\n")
    upstream = ("--base-url", "http://127.0.0.1:9/v1", "--model", "none", "--grader", "numeric")
    return {
        "collect": (questions, "--run", place / "drawn", *upstream, "--dry-run"),
        "import": (source, "--run", place / "imported"),
        "grade": (run, "--grader", "numeric"),
        "estimate": (run, "--levels", "1,2"),
        "solve": (run, "--budget", "1.5"),
        "train": (run, "--policy", "mixture", "--out", place / "bundle", "--levels", "1,2"),
        "calibrate": (trained()[0], "--bundle", trained()[1], "--budget", "1.5"),
        "evaluate": (run, *EVALUATE),
        "serve": ("--bundle", "example", "--base-url", upstream[1], "--budget", "2", "--check"),
        "replay": (logged(), "--bundle", "example", "--budget", "2"),
        "report": (run, "--out", place / "report.html", "--policy", "early-stopping"),
        "demo": (source,),
        "reproduce": (run, "--out", place / "paper", "--full-runs", "0"),
    }


def test_every_command_has_an_example_here(run: Path, source: Path) -> None:
    assert every_command(run, source).keys() == set(OFFLINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_every_option(call: Call, name: str) -> None:
    command = COMMANDS[name]
    called = call(name, "--help")
    assert called.code == 0
    assert command.help
    assert command.help.splitlines()[0] in called.out
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert {"--json", "--config"} <= {option.opts[0] for option in options}
    for option in options:
        assert option.help
        assert option.help.endswith(".")
        for spelling in option.opts:
            assert spelling in called.out


def test_help_and_version_are_no_failures(call: Call) -> None:
    for spelling in ("-h", "--help"):
        called = call(spelling)
        assert called.code == 0
        assert all(name in called.out for name in COMMANDS)
    assert call("--version") == (0, f"adacompute {adacompute.__version__}\n", "")


@pytest.mark.parametrize("name", OFFLINE)
def test_json_is_one_document_on_standard_output_and_nothing_else(
    call: Call, run: Path, source: Path, name: str
) -> None:
    document = call(name, *every_command(run, source)[name], "--json").document
    assert isinstance(document, dict)


@pytest.mark.parametrize("name", OFFLINE)
def test_people_get_a_table_and_an_empty_standard_error(
    call: Call, run: Path, source: Path, name: str
) -> None:
    called = call(name, *every_command(run, source)[name])
    assert (called.code, called.err) == (0, "")
    assert "│" in called.out
    with pytest.raises(json.JSONDecodeError):
        json.loads(called.out)


def test_documents_have_the_names_of_the_contract(call: Call, run: Path, source: Path) -> None:
    examples = every_command(run, source)
    counts = call("import", *examples["import"], "--json").document
    assert {"questions", "samples", "unparsed", "correct"} <= counts.keys()
    graded = call("grade", *examples["grade"], "--json").document
    assert {"samples", "unparsed", "correct"} <= graded.keys()
    estimated = call("estimate", *examples["estimate"], "--json").document
    assert [row["level"] for row in estimated["levels"]] == [1, 2]
    assert all({"utility", "standard_error"} <= row.keys() for row in estimated["levels"])
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
    assert call("train", *examples["train"], "--json").document["policy"] == "mixture"


@pytest.mark.slow
def test_rows_of_learned_routers_have_their_own_names(call: Call, run: Path) -> None:
    options = ("--budgets", "1.5", "--levels", "1,2", "--policies", "router,value-router")
    rows = call("evaluate", run, *options, "--json").document["rows"]
    assert [row["policy"] for row in rows] == ["router", "value-router"]
    for row in rows:
        assert {"imitation", "oracle_gap", "regret", "regret_bound"} <= row.keys()


@pytest.mark.slow
def test_the_installed_command_works_in_a_process_of_its_own(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = Path(sys.executable).with_name("adacompute")
    done = subprocess.run(
        [command, "import", source, "--run", run, "--json"], capture_output=True, check=True
    )
    assert (json.loads(done.stdout)["questions"], done.stderr) == (12, b"")
    assert execute("estimate", run, "--levels", "1,4", "--json").document["questions"] == 12
    assert refused(execute("solve", run, "--budget", "0.5"))
    assert misused(execute("solve", run))
    done = subprocess.run(
        [sys.executable, "-m", "adacompute", "--version"], capture_output=True, check=True
    )
    assert done.stdout.decode() == f"adacompute {adacompute.__version__}\n"


def test_an_interrupt_ends_in_one_word_and_code_130(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate_stage, "estimate", _interrupt)
    assert refused(call("estimate", run, "--levels", "1"), 130) == "adacompute: stopped"


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Commands:"),
        (("dance",), "No such command 'dance'"),
        (("solve",), "Missing argument 'DIR'"),
        (("solve", "run"), "Missing option '--budget'"),
        (("solve", "run", "--budget", "much"), "'much' is not a valid float"),
        (("solve", "run", "--budget", "2", "--limit", "latency"), "'latency' is not a limit such"),
        (("solve", "run", "--budget", "2", "--limit", "a=1", "--limit", "a=2"), "given twice"),
        (("solve", "run", "--budget", "2", "--method", "guess"), "'guess' is not one of"),
        (("estimate", "run", "--levels", "1,x"), "'1,x' is not a list of whole numbers"),
        (("estimate", "run", "--levels", ""), "'' is not a list of whole numbers"),
        (("estimate", "run", "--levels", "1.5"), "'1.5' is not a list of whole numbers"),
        (("estimate", "run", "--levels", "9" * 5000), "is not a list of whole numbers"),
        (("estimate", "run", "--vote", "loud"), "'loud' is not one of"),
        (("evaluate", "run", "--budgets", "1,,2"), "'1,,2' is not a list of numbers"),
        (("evaluate", "run", "--seed", "x"), "'x' is not a valid integer"),
        (("evaluate", "run", "--nonsense"), "No such option"),
        (("import", "file"), "Missing option '--run'"),
        (("grade", "run"), "Missing option '--grader'"),
        (("train", "run", "--policy", "mixture"), "Missing option '--out'"),
    ],
)
def test_wrong_use_ends_with_code_2(call: Call, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in misused(call(*arguments))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("estimate", "--levels", "2,1"), "levels are rising whole numbers"),
        (("estimate", "--levels", "0,1"), "levels are rising whole numbers"),
        (("estimate", "--levels", f"1,{10**30}"), "levels are rising whole numbers"),
        (("evaluate", "--levels", "4,2"), "levels are rising whole numbers"),
        (("evaluate", "--policies", "psychic"), "there is no policy 'psychic'"),
        (("evaluate", "--policies", ""), "there is no policy ''"),
        (("evaluate", "--budgets", "nan"), "a finite number above 0, not nan"),
        (("evaluate", "--budgets", "inf"), "a finite number above 0, not inf"),
        (("evaluate", "--budgets", "0"), "a finite number above 0, not 0"),
        (("evaluate", "--budgets=-2"), "a finite number above 0, not -2"),
        (("evaluate", "--unit", "bananas"), "not 'bananas'"),
        (("evaluate", "--features", "tea"), "there is no feature set 'tea'"),
        (("evaluate", "--seed=-1"), "a seed is a whole number from 0"),
        (("solve", "--budget", "nan"), "a budget is a finite number, not nan"),
        (("solve", "--budget", "inf"), "a budget is a finite number, not inf"),
        (("solve", "--budget", "2", "--unit", "money"), "prices of tokens"),
        (("solve", "--budget", "2", "--limit", "=3"), "not ''"),
        (("grade", "--grader", "tarot"), "there is no grader 'tarot'"),
        (("grade", "--grader", "cmd:"), "needs a command"),
        (("train", "--policy", "psychic", "--out", "bundle"), "there is no policy 'psychic'"),
    ],
)
def test_options_that_cannot_be_used_end_in_one_sentence_and_code_2(
    call: Call, run: Path, arguments: tuple[str, ...], expected: str
) -> None:
    command, *options = arguments
    assert expected in refused(call(command, run, *options), 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("solve", "--budget", "0.5"), "budget of 0.5 is below 1"),
        (("solve", "--budget", "0"), "budget of 0 is below 1"),
        (("solve", "--budget=-4"), "budget of -4 is below 1"),
        (("solve", "--budget", "2", "--limit", "latency=0.1"), "on latency is below"),
        (("estimate", "--levels", "1,5"), "need 5 samples of every question, one has 4"),
        (("evaluate", "--levels", "3,4"), "half of the samples a question, 2 of 4, and"),
        (("evaluate", "--levels", ",".join(map(str, range(9, 2000)))), "the lowest level is 9"),
        (("evaluate", "--levels", "1"), "leaves one of the levels 1, and a policy needs two"),
        (("evaluate", "--levels", "1,4"), "leaves one of the levels 1, 4, and a policy"),
        (("grade", "--grader", "cmd:false"), "the grader 'cmd:false' failed"),
        (("grade", "--grader", "cmd:/no/such/program"), "failed"),
    ],
)
def test_failures_end_in_one_sentence_and_code_1(
    call: Call, run: Path, arguments: tuple[str, ...], expected: str
) -> None:
    command, *options = arguments
    assert expected in refused(call(command, run, *options))


def test_an_absurd_budget_buys_what_there_is(call: Call, run: Path) -> None:
    assert call("solve", run, "--budget", "1e300", "--json").document["cost"] <= 4.0
    rows = call("evaluate", run, *EVALUATE, "--budgets", "1e300", "--json").document["rows"]
    assert all(row["cost"] <= 2.0 + 1e-9 for row in rows if row["policy"] != "oracle")


@pytest.mark.parametrize("name", ["grade", "estimate", "solve", "evaluate", "train"])
@pytest.mark.parametrize("what", ["missing", "file", "empty", "below a file"])
def test_what_is_no_run_ends_in_one_sentence(
    call: Call, run: Path, source: Path, tmp_path: Path, name: str, what: str
) -> None:
    (tmp_path / "empty").mkdir()
    place = tmp_path / what
    if what == "file":
        place = source
    elif what == "below a file":
        place = source / "run"
    _, *options = every_command(run, source)[name]
    sentence = refused(call(name, place, *options))
    assert ("is a file, not a run" if what == "file" else "has no") in sentence
    assert str(place) in sentence


@pytest.mark.parametrize("what", ["missing", "directory", "text", "cut", "nothing"])
def test_what_is_no_file_of_samples_ends_in_one_sentence(
    call: Call, source: Path, tmp_path: Path, what: str
) -> None:
    path = tmp_path / what
    if what == "directory":
        path.mkdir()
    elif what != "missing":
        whole = source.read_bytes()
        contents = {"text": b"question,answer\n1,2\n", "cut": whole[: len(whole) // 2]}
        path.write_bytes(contents.get(what, b""))
    for arguments in (("import", path, "--run", tmp_path / "new"), ("demo", path)):
        assert str(path) in refused(call(*arguments))
    assert not (tmp_path / "new").exists()


def test_a_file_where_a_directory_should_be_ends_in_one_sentence(
    call: Call, run: Path, source: Path
) -> None:
    assert str(source) in refused(call("import", source, "--run", source))
    assert "Not a directory" in refused(call("import", source, "--run", source / "deeper"))
    for out in (source, source / "bundle"):
        assert str(source) in refused(call("train", run, "--policy", "fixed", "--out", out))


def test_a_name_too_long_for_the_file_system_ends_in_one_sentence(
    call: Call, source: Path, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 300)
    assert "File name too long" in refused(call("import", source, "--run", long))
    assert "File name too long" in refused(call("estimate", long))
    assert "File name too long" in refused(call("import", long, "--run", tmp_path / "new"))


def test_a_full_disk_ends_in_one_sentence_that_names_the_file(
    call: Call, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        sentence = refused(call("import", source, "--run", place))
    assert sentence == f"adacompute: {place / 'samples.parquet'}: No space left on device"
    assert list(place.iterdir()) == []
    assert call("import", source, "--run", place).code == 0


def test_a_directory_that_may_not_be_read_ends_in_one_sentence(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(store, "hash_file", forbid)
    sentence = refused(call("evaluate", run))
    assert sentence == f"adacompute: {run / 'samples.parquet'}: Permission denied"


def test_too_little_memory_ends_in_one_sentence(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(estimate_stage, "estimate", exhaust)
    assert "more memory than there is" in refused(call("estimate", run, "--levels", "1"))


def test_a_stopped_or_altered_run_says_which_command_mends_it(
    call: Call, run: Path, source: Path
) -> None:
    (run / "utility.parquet").write_bytes(b"PAR1")
    assert f"run 'adacompute estimate {run}' again" in refused(call("solve", run, "--budget", "2"))
    assert call("estimate", run, "--levels", "1,2").code == 0
    (run / "import.manifest.json").write_text("{")
    assert "remove it to run its stage again" in refused(call("grade", run, "--grader", "exact"))
    (run / "import.manifest.json").unlink()
    assert "adacompute import SOURCE" in refused(call("grade", run, "--grader", "exact"))
    assert call("import", source, "--run", run).code == 0
    assert call("grade", run, "--grader", "exact").code == 0


HOSTILE = "\x1b[31mred\x1b[0m\r\n\0\u202eevil\u2066\x9b"


def test_ids_and_texts_do_not_steer_the_terminal(call: Call, tmp_path: Path) -> None:
    rows = population(question=HOSTILE, gold="\x1b\nevil")
    rows = [{**row, "question_id": f"{HOSTILE}{row['question_id']}"} for row in rows]
    source, run = write(tmp_path / "hostile.parquet", rows), tmp_path / "run"
    said = [
        call("import", source, "--run", run, "--model", HOSTILE.replace("\0", "")),
        call("estimate", run, "--levels", "1,4"),
        call("solve", run, "--budget", "1.6"),
        call("train", run, "--policy", "longest-first", "--out", tmp_path / "bundle"),
    ]
    assert all((called.code, called.err) == (0, "") for called in said)
    printed = "".join(called.out for called in said)
    assert all(line.isprintable() for line in printed.splitlines())
    assert r"\x1b[31mred" in printed
    failed = refused(call("grade", run, "--grader", "numeric"))
    assert r"\x1b[31mred" in failed
    assert r"\x1b\nevil" in failed
    split = call("solve", run, "--budget", "1.6", "--json").document["split"]
    assert split[0]["question"].startswith(HOSTILE)


def test_hostile_arguments_do_not_steer_the_terminal(call: Call, run: Path) -> None:
    hostile = HOSTILE.replace("\0", "")
    assert r"\x1b[31mred" in refused(call("grade", run, "--grader", hostile), 2)
    assert r"\x1b[31mred" in refused(call("estimate", hostile))
    assert r"\x1b[31mred" in refused(call("evaluate", run, "--policies", hostile), 2)
    assert "\x1b" not in misused(call("estimate", run, "--levels", hostile))
    assert "\x1b" not in misused(call(hostile))


@pytest.mark.slow
def test_markup_in_a_name_does_not_break_the_progress_of_a_terminal(run: Path) -> None:
    ours, its = os.openpty()
    arguments = ["--policy", "[/bold]", "--out", str(run / "bundle")]
    done = subprocess.run(
        [sys.executable, "-m", "adacompute", "train", str(run), *arguments],
        stdout=subprocess.PIPE,
        stderr=its,
        check=False,
    )
    os.close(its)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "there is no policy '[/bold]'" in said.replace("\r\n", " ")
    assert "Traceback" not in said


def test_a_terminal_without_our_characters_gets_others(run: Path) -> None:
    called = execute("solve", run, "--budget", "1.5", PYTHONIOENCODING="ascii")
    assert (called.code, called.err) == (0, "")
    assert called.out.isascii()
    assert "bound" in called.out
    helped = execute("evaluate", "--help", PYTHONIOENCODING="ascii")
    assert (helped.code, helped.err) == (0, "")


def test_questions_of_a_megabyte_are_evaluated(call: Call, tmp_path: Path) -> None:
    rows = population(samples=4)
    for row in rows:
        row["question"] = f"{row['question_id']} " + "word 1.5 " * 120_000
    source, run = write(tmp_path / "large.parquet", rows), tmp_path / "run"
    assert call("import", source, "--run", run, "--json").document["questions"] == 12
    options = ("--budgets", "1", "--levels", "1,2", "--policies", "longest-first")
    assert call("evaluate", run, *options, "--json").document["questions"] == 12


@pytest.mark.parametrize("questions", [1, 2])
def test_one_question_and_two_go_down_the_line_until_some_must_be_held_out(
    call: Call, tmp_path: Path, questions: int
) -> None:
    source, run = write(tmp_path / "few.parquet", population(questions)), tmp_path / "run"
    assert call("import", source, "--run", run).code == 0
    assert call("estimate", run, "--levels", "1,2").code == 0
    assert call("solve", run, "--budget", "1.5").code == 0
    bundle = tmp_path / "bundle"
    assert call("train", run, "--policy", "mixture", "--out", bundle).code == 0
    assert f"{questions} different questions are too few" in refused(call("evaluate", run))


@pytest.mark.parametrize("answer", ["7", None])
def test_samples_that_are_all_right_or_all_unreadable_go_down_the_line(
    call: Call, tmp_path: Path, answer: str | None
) -> None:
    rows = [{**row, "answer": answer, "correct": answer == "7"} for row in population()]
    source, run = write(tmp_path / "alike.parquet", rows), tmp_path / "run"
    assert call("import", source, "--run", run).code == 0
    assert call("estimate", run, "--levels", "1,2").code == 0
    assert call("solve", run, "--budget", "1.5", "--json").document["cost"] == 1.0
    scored = call("evaluate", run, *EVALUATE, "--json").document["rows"]
    assert {row["accuracy"] for row in scored} == {float(answer == "7")}
    assert f"{float(answer == '7'):.3f}" in call("evaluate", run, *EVALUATE).out


def test_samples_recorded_twice_are_named(call: Call, tmp_path: Path) -> None:
    rows = population()
    source = write(tmp_path / "twice.parquet", [*rows, rows[5]])
    sentence = refused(call("import", source, "--run", tmp_path / "run"))
    assert "holds sample 1 of question 'q1' 2 times" in sentence


def row(policy: str, budget: float, low: float, headroom: float | None = None) -> dict[str, Any]:
    return {
        "policy": policy,
        "budget": budget,
        "cost": budget,
        "rounds": 1.26,
        "accuracy": 0.5,
        "difference_low": low,
        "difference_high": low + 0.1,
        "headroom": headroom,
    }


def test_the_table_of_scores_says_what_it_was_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    result: dict[str, Any] = {
        "protocol": "held-out",
        "unit": "tokens",
        "drop_unparsed": True,
        "questions": 20,
        "excluded": 3,
        "samples": 8,
        "levels": [1, 2],
        "levels_excluded": [8, 16],
        "unparsed_share": 0.125,
        "skipped": {"router": "this needs xgboost"},
        "rows": [row("mixture", 2.0, 0.0), row("retry", 2.0, 0.1, 0.75), row("retry", 4.0, -0.2)],
    }
    output.show_scores(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert "by mean budget in tokens, unparsed samples removed" in printed
    assert "20 questions (3 left out) × 8 samples, levels 1, 2 (without 8, 16: more" in printed
    assert "75% 1.3r" in printed
    assert "– 1.3r" in printed
    assert "0.500*" in printed
    assert "0.500*-" in printed
    assert "* and green, *- and red: the difference" in printed
    assert "@: what was spent, where it is less than 95% of the budget" in printed
    assert "12.5% of the samples could not be read" in printed
    assert "router was left out: this needs xgboost" in printed
    output.show_scores({**result, "protocol": "paper", "skipped": {}})
    printed = " ".join(capsys.readouterr().out.split())
    assert "the paper's protocol" in printed
    assert "@ 4" in printed
    assert "left out" not in printed
    for cost, shown in ((5.97e-7, "@ 5.97e-07"), (307500.0, "@ 307500"), (12.345, "@ 12.35")):
        dear = row("router", 2.0, 0.0) | {"cost": cost}
        output.show_scores({**result, "protocol": "paper", "rows": [dear]})
        assert shown in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"cost": 2.7}, "0.500 @2.7 – 1.3r"),
        ({"cost": 3.9}, "0.500 – 1.3r"),
        ({"rounds": 1.04}, "0.500 –"),
        ({"rounds": 1.05, "headroom": 0.5}, "0.500 50% 1.1r"),
        ({"policy": "fixed", "cost": 2.0}, "0.500 @2"),
        ({"difference_low": 0.01, "cost": 0.5}, "0.500* @0.5 – 1.3r"),
        ({"difference_low": -0.2, "difference_high": -0.1}, "0.500*- – 1.3r"),
    ],
)
def test_a_cell_says_what_was_spent_and_what_is_certain(change: dict[str, Any], shown: str) -> None:
    cell = output._cell(row("retry", 4.0, -0.05) | change, honest=True)
    assert " ".join(cell.plain.split()) == shown


@pytest.mark.parametrize(
    ("options", "title"),
    [
        (("--budget", "1"), "Best allocation of 1 sample a question"),
        (("--budget", "2"), "Best allocation of 2 samples a question"),
        (("--budget", "9", "--unit", "tokens"), "Best allocation of 9 tokens a question"),
        (("--budget", "9", "--unit", "money"), "Best allocation of 9 of money a question"),
    ],
)
def test_titles_say_a_budget_with_its_noun(
    call: Call, tmp_path: Path, options: tuple[str, ...], title: str
) -> None:
    import_samples(write(tmp_path / "s.parquet", population(cost=1.5)), tmp_path / "run")
    estimate_stage.estimate_run(tmp_path / "run", levels=(1, 2))
    assert title in " ".join(call("solve", tmp_path / "run", *options).out.split())


CONFIG = """
[import]
run = "from-the-file"

[estimate]
levels = [1, 2]
method = "windows"
json = true

[solve]
budget = 1.5
limit = ["latency=9", "tokens=90"]

[evaluate]
budgets = 1.5
levels = "1,2"
policies = ["mixture", "fixed"]
drop-unparsed = true
"""


def test_a_long_path_of_prices_is_shown_in_part_and_told_whole(call: Call, run: Path) -> None:
    command = ("train", run, "--policy", "value-router", "--out", run.parent / "bundle")
    whole = call(*command, "--json").document["on_training_questions"]
    assert len(whole) > 12
    shown = call(*command).out
    assert f"on training questions, 12 of {len(whole)} rows" in shown
    _, _, below = shown.partition("on training questions, 12")
    prices = [line.split("│")[1].strip() for line in below.splitlines() if line.startswith("│")]
    assert len(prices) == 12
    assert prices[0] == f"{whole[0]['price']:.4g}"
    assert prices[-1] == f"{whole[-1]['price']:.4g}"


def test_options_come_from_a_file_and_the_command_line_goes_before_it(
    call: Call, run: Path, tmp_path: Path
) -> None:
    config = tmp_path / "line.toml"
    config.write_text(CONFIG)
    estimated = call("estimate", run, "--config", config).document
    assert estimated["method"] == "windows"
    assert [row["level"] for row in estimated["levels"]] == [1, 2]
    changed = call("estimate", "--levels", "1,4", run, "--config", config).document
    assert changed["method"] == "windows"
    assert [row["level"] for row in changed["levels"]] == [1, 4]
    solved = call("solve", run, "--config", config, "--json").document
    assert solved["limits"].keys() == {"latency", "tokens"}
    scores = call("evaluate", run, "--config", config, "--json").document
    assert (scores["drop_unparsed"], scores["levels"]) == (True, [1, 2])
    found = [(row["policy"], row["budget"]) for row in scores["rows"]]
    assert found == [("mixture", 1.5), ("fixed", 1.5)]


def test_a_required_option_may_come_from_the_file(
    call: Call, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("line.toml").write_text(CONFIG)
    assert call("import", source, "--config", "line.toml").code == 0
    assert (tmp_path / "from-the-file" / "samples.parquet").is_file()


def test_limits_may_be_a_table(call: Call, run: Path, tmp_path: Path) -> None:
    config = tmp_path / "line.toml"
    config.write_text("[solve]\nbudget = 2\n[solve.limit]\nlatency = 9\n")
    solved = call("solve", run, "--config", config, "--json").document
    assert solved["limits"]["latency"]["limit"] == 9.0
    config.write_text('[solve]\nbudget = 2\nlimit = "latency=8"\n')
    solved = call("solve", run, "--config", config, "--json").document
    assert solved["limits"]["latency"]["limit"] == 8.0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[estimate", "cannot be read as TOML"),
        ("levels = [1, 2]", "sets 'levels', which is not a table of options"),
        ("[estimat]\nlevels = [1]", "sets 'estimat', which is not a table of options"),
        ("estimate = 3", "sets 'estimate', which is not a table of options"),
        ("[estimate]\nrungs = [1]", "sets 'rungs' for 'estimate', which takes json, levels"),
        ("[estimate]\nconfig = 'other.toml'", "sets 'config' for 'estimate', which takes"),
        ("[estimate]\nas_json = true", "sets 'as_json' for 'estimate', which takes"),
        ("[estimate]\nlevels = [1.5]", "'1.5' is not a list of whole numbers"),
        ("[estimate]\nlevels = [true]", "'True' is not a list of whole numbers"),
        ("[estimate]\nlevels = [[1], [2]]", "sets 'levels' for 'estimate' to [[1], [2]]"),
        ("[estimate]\nlevels = {a = 1}", "sets 'levels' for 'estimate' to {'a': 1}"),
        ("[estimate]\nmethod = 3", "'3' is not one of"),
        ("[estimate]\nmethod = ['exact', 'windows']", "sets 'method' for 'estimate' to ["),
        ("[estimate]\nmethod = 2024-01-01", "'2024-01-01' is not one of"),
        ("[estimate]\njson = 'maybe'", "sets 'json' for 'estimate' to 'maybe'"),
        ('[estimate]\nmethod = "\\u0000"', "sets 'method' for 'estimate' to '\\x00'"),
    ],
)
def test_a_wrong_file_of_options_is_wrong_use(
    call: Call, run: Path, tmp_path: Path, content: str, expected: str
) -> None:
    config = tmp_path / "line.toml"
    config.write_text(content)
    assert expected in misused(call("estimate", run, "--config", config))


def test_a_file_of_options_that_cannot_be_read_is_wrong_use(
    call: Call, run: Path, tmp_path: Path
) -> None:
    assert "cannot be read as TOML" in misused(call("estimate", run, "--config", "missing.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    found = misused(call("estimate", run, "--config", tmp_path / "bytes.toml"))
    assert "cannot be read as TOML" in found
    assert "directory" in misused(call("estimate", run, "--config", tmp_path))


BASE_ONLY = """
for name in ("xgboost", "sklearn", "onnx", "onnxruntime", "math_verify", "scipy"):
    sys.modules[name] = None
"""


@pytest.mark.slow
def test_a_base_install_scores_what_it_can_and_says_what_it_left_out(run: Path) -> None:
    options = ("--budgets", "1.5", "--levels", "1,2")
    scores = execute("evaluate", run, *options, "--json", before=BASE_ONLY).document
    assert scores["skipped"].keys() == {"router", "value-router", "sequential"}
    assert all("pip install 'adacompute[train]'" in why for why in scores["skipped"].values())
    assert {row["policy"] for row in scores["rows"]} >= {"mixture", "oracle", "retry"}
    shown = execute("evaluate", run, *options, before=BASE_ONLY)
    assert "router was left out: this needs xgboost" in shown.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("evaluate", "--policies", "router", "--levels", "1,2"), "train"),
        (("evaluate", "--protocol", "paper"), "train"),
        (("train", "--policy", "value-router", "--out", "bundle"), "train"),
        (("grade", "--grader", "math"), "math"),
    ],
)
def test_a_command_that_needs_an_extra_says_which(
    run: Path, arguments: tuple[str, ...], extra: str
) -> None:
    command, *options = arguments
    sentence = refused(execute(command, run, *options, before=BASE_ONLY))
    assert f"pip install 'adacompute[{extra}]'" in sentence


LOOK = """
import sys, time
opened = []
sys.addaudithook(lambda event, _: opened.append(event) if event.startswith("socket.") else None)
import adacompute
spent = time.process_time()
heavy = {"pyarrow", "rich", "xgboost", "sklearn", "onnx", "onnxruntime", "math_verify", "click"}
print(sorted(heavy & set(sys.modules)), opened, spent < 1.0)
"""


def test_importing_the_library_is_fast_light_and_offline() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout == "[] [] True\n"


WATCH = """
def refuse(event, _):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise RuntimeError(event)
sys.addaudithook(refuse)
"""


def test_the_line_never_asks_the_network(source: Path) -> None:
    called = execute("demo", source, "--json", before=WATCH, TMPDIR=str(source.parent))
    assert called.document["solve"]["cost"] <= 2.0
