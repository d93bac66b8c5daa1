"""Reference pages: tables of commands, settings, metrics, columns and errors, made from the code.

``write_pages`` writes every page before Sphinx reads them. The pages are not committed: what they
say is in the code, beside what it describes.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

import adacompute
from adacompute.batch.answers import ANSWER_COLUMNS
from adacompute.cli.main import list_commands
from adacompute.cli.options import Setting, option_key
from adacompute.cli.output import EXIT_CODES
from adacompute.core.errors import AdaComputeError
from adacompute.datasets.columns import QUESTION_COLUMNS, REQUIRED, SAMPLE_COLUMNS
from adacompute.gateway.accounting.caps import CapConfig
from adacompute.gateway.accounting.metrics import (
    CAP_GAUGES,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    IN_FLIGHT,
    IN_FLIGHT_HELP,
    NOT_READY,
    NOT_READY_HELP,
    PREFIX,
    STORE_GAUGES,
)
from adacompute.gateway.error_replies import ERROR_CODES
from adacompute.gateway.requests.clients import ClientLimits
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import ModelConfig
from adacompute.gateway.settings.upstream_settings import UpstreamConfig
from adacompute.storage.calls import END_COLUMNS, START_COLUMNS
from adacompute.storage.decision_columns import DECISION_COLUMNS, LOGGED_SAMPLE_COLUMNS

PAGES = ("command-line", "configuration", "metrics", "columns", "errors")
"""Names of the generated pages."""

TABLES: Mapping[str, tuple[type, str]] = {
    "[serve]": (Config, "The gateway. [Run the gateway](../how-to/serve.md) shows a first file."),
    "[serve.models.NAME]": (
        ModelConfig,
        "A virtual model, by its name. See [tune latency](../how-to/tune-latency.md).",
    ),
    "[serve.upstreams.NAME]": (
        UpstreamConfig,
        "An upstream for models and arms. See [run the gateway](../how-to/serve.md).",
    ),
    "[serve.client_limits.NAME]": (
        ClientLimits,
        "What one client may ask for, by its name. See [security](../how-to/secure.md).",
    ),
    "[[serve.caps]]": (
        CapConfig,
        "A limit on what is spent. See [cap spending](../how-to/cap-spending.md).",
    ),
}
"""Tables of the configuration file: their dataclass and an introduction."""

TYPE_NAMES = {"str": "string", "float": "number", "int": "integer", "bool": "boolean"}
ARROW_NAMES = {"bool": "boolean", "large_string": "string", "double": "float64", "float": "float32"}


def write_pages(directory: Path) -> None:
    """Write every generated page into the directory of the reference."""
    makers = (command_line, configuration, metrics, columns, errors)
    for name, make in zip(PAGES, makers, strict=True):
        (directory / f"{name}.md").write_text(make(), encoding="utf-8")


def copy_design_notes(source: Path, directory: Path) -> None:
    """Copy the design notes to where Sphinx finds them."""
    directory.mkdir(exist_ok=True)
    for note in source.glob("0*.md"):
        (directory / note.name).write_text(note.read_text(encoding="utf-8"), encoding="utf-8")


def command_line() -> str:
    """Return the page with every option and setting of every command, each with an anchor."""
    lines = [COMMAND_LINE.format(exit_codes=_exit_codes())]
    for name, command in list_commands().items():
        sentence, _, rest = inspect.cleandoc(command.help or "").partition("\n\n\b\n")
        example, _, more = rest.partition("\n\n")
        context = click.Context(command, info_name=f"adacompute {name}")
        lines += [f"## {name}", "", sentence, "", "```text", context.get_usage(), "```", ""]
        lines += ["```console", f"$ {example.strip()}", "```", ""] if example else []
        lines += [more, ""] if more else []
        options = [one for one in command.params if isinstance(one, click.Option)]
        lines += _describe_options(name, [one for one in options if not isinstance(one, Setting)])
        if hidden := [one for one in options if isinstance(one, Setting)]:
            lines += [SETTINGS_OF_COMMAND, "", *_describe_options(name, hidden)]
    return "\n".join(lines)


def _describe_options(command: str, options: Sequence[click.Option]) -> list[str]:
    """Return a list of definitions, with an anchor for each option."""
    lines = []
    for one in options:
        key, kind = option_key(one), "" if one.is_flag else one.make_metavar(click.Context(NO))
        word = f"{key} = {kind or 'true'}" if isinstance(one, Setting) else f"--{key} {kind}"
        default = f" Default: `{one.default}`." if one.show_default else ""
        required = " Required." if one.required else ""
        anchor = f"{command.replace(' ', '-')}-{key}"
        meaning = f": {one.help}{required}{default}"
        lines += [f"[`{word.strip()}`]{{#{anchor}}}", meaning, ""]
    return lines


def configuration() -> str:
    """Return the page with every setting of the gateway."""
    lines = [CONFIGURATION]
    for title, (kind, introduction) in TABLES.items():
        rows = [
            (f"`{field.name}`", type_name(str(field.type)), default_of(field), meaning)
            for field, meaning in settings(kind)
        ]
        lines += [f"## `{title}`", "", introduction, ""]
        lines += [*table(("setting", "type", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def metrics() -> str:
    """Return the page with every metric."""
    found = [(name, "counter", labels, text) for name, (text, labels) in COUNTERS.items()]
    found += [(name, "histogram", ("model",), text) for name, (text, _) in HISTOGRAMS.items()]
    found += [(name, "gauge", ("model",), text) for name, text in GAUGES.items()]
    found += [(name, "gauge", ("cap",), text) for name, (text, _) in CAP_GAUGES.items()]
    found += [(name, "gauge", (), text) for name, text in STORE_GAUGES.items()]
    found += [(IN_FLIGHT, "gauge", (), IN_FLIGHT_HELP)]
    found += [(NOT_READY, "gauge", ("cause",), NOT_READY_HELP)]
    rows = [
        (f"`{PREFIX}{name}`", kind, ", ".join(f"`{one}`" for one in labels) or "–", text)
        for name, kind, labels, text in sorted(found)
    ]
    return "\n".join([METRICS, *table(("metric", "type", "labels", "meaning"), rows), ""])


def columns() -> str:
    """Return the page with the columns of every file."""
    lines = [COLUMNS]
    for title, introduction, found in (
        ("Samples", SAMPLES, SAMPLE_COLUMNS),
        ("Questions", QUESTIONS, QUESTION_COLUMNS),
        ("Decisions", DECISIONS, DECISION_COLUMNS),
        ("Logged samples", LOGGED_SAMPLES, LOGGED_SAMPLE_COLUMNS),
        ("Answers of a batch", ANSWERS, ANSWER_COLUMNS),
    ):
        required = REQUIRED if found is SAMPLE_COLUMNS else REQUIRED & {"question_id"}
        is_input = found in (SAMPLE_COLUMNS, QUESTION_COLUMNS)
        rows = [
            (f"`{name}`", _arrow_name(kind, name in required or not is_input), meaning)
            for name, (kind, meaning) in found.items()
        ]
        lines += [f"## {title}", "", introduction, ""]
        lines += [*table(("column", "type", "meaning"), rows), ""]
    lines += ["## Account of calls", "", CALLS, ""]
    for title, members in (("first", START_COLUMNS), ("last", END_COLUMNS)):
        rows = [(f"`{name}`", meaning) for name, meaning in members.items()]
        lines += [*table((f"member of the {title} row", "meaning"), rows), ""]
    return "\n".join(lines)


def errors() -> str:
    """Return the page with exceptions, HTTP errors and exit codes."""
    exceptions = [
        (f"`{one.__name__}`", f"`{one.__bases__[0].__name__}`", _first_line(one))
        for one in exception_classes()
    ]
    codes = [
        (f"`{code}`", str(status), meaning)
        for code, (status, meaning) in sorted(ERROR_CODES.items(), key=lambda one: one[1][0])
    ]
    return ERRORS.format(
        exceptions="\n".join(table(("exception", "is a", "raised for"), exceptions)),
        codes="\n".join(table(("code", "status", "why"), codes)),
        exit_codes=_exit_codes(),
    )


def settings(kind: type) -> Iterator[tuple[Field[Any], str]]:
    """Yield the fields of a dataclass with the text below each of them."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    meanings = {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    for field in fields(kind):
        yield field, meanings.get(field.name, "")


def exception_classes() -> list[type[AdaComputeError]]:
    """Return the exceptions that adacompute exports, base classes first."""
    found = [getattr(adacompute, name) for name in adacompute.__all__]
    return sorted(
        (one for one in found if isinstance(one, type) and issubclass(one, AdaComputeError)),
        key=lambda one: (len(one.__mro__), one.__name__),
    )


def type_name(annotation: str) -> str:
    """Return the name of a type as a TOML file would call it.

    >>> type_name("float | None"), type_name("Sequence[str]"), type_name("Mapping[str, str]")
    ('number', 'list of strings', 'table')
    """
    plain = annotation.removesuffix(" | None")
    if plain == "Sequence[str]":
        return "list of strings"
    if plain == "Sequence[CapConfig]":
        return "list of tables"
    return TYPE_NAMES.get(plain, "table")


def default_of(field: Field[Any]) -> str:
    """Return the default of a setting as TOML writes it; "required" if there is none."""
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "–"
    value = field.default
    if value is None or value == ():
        return "–"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,g}" if is_number else f"`{json.dumps(value)}`"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, with backticks of docstrings made single."""
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(_cell(one) for one in line)} |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _arrow_name(kind: object, is_required: bool) -> str:  # noqa: FBT001 - private
    name = ARROW_NAMES.get(str(kind), str(kind).replace("list<item: float>", "list of float32"))
    name = name.replace("list<item: int32>", "list of int32")
    return name if is_required else f"{name} or null"


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _exit_codes() -> str:
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    return "\n".join(table(("exit code", "meaning"), rows))


NO = click.Command("none")
"""A command without options: click asks for one to write types."""

SETTINGS_OF_COMMAND = "Settings, for `--config NAME=VALUE` or the file:"

COMMAND_LINE = """# Command line

Every command prints a table. With `--json` it prints one JSON document on standard output, and
nothing else there. Progress goes to standard error, and only if that is a terminal.

{exit_codes}

A command has options, and settings, which fewer people need. `--config seed=1` gives one setting;
`--config FILE` reads a TOML file, in which the table named after the command may hold both:

```toml
[evaluate]
budgets = [1.5, 2, 3]
levels = [1, 2, 3, 4, 6, 8]
drop-unparsed = true
```

Options on the command line win, then `NAME=VALUE`, then the file. An unknown name is rejected, with
a list of the known ones. `serve` reads the [configuration of the gateway](configuration.md) in the
same two ways. This page is made from the definitions of the commands.
"""

CONFIGURATION = """# Configuration of the gateway

Every setting of the TOML file that `adacompute serve --config FILE` reads, with its type, its
default and its meaning. A number in brackets is the status that a client gets beyond the limit.
An unknown setting is an error that lists the known ones. `${NAME}` in a string is replaced by the
environment variable. Relative paths start at the directory of the file. To check a file without
serving, add `--check`:

```sh
adacompute serve --config gateway.toml --check
```

This page is made from the dataclasses in `src/adacompute/gateway`.
"""

METRICS = """# Metrics

Every metric on `/metrics` of the admin port, for Prometheus. [Observe the
gateway](../how-to/observe.md) says which ones to look at, and which alerts to set. Histograms also
have the usual `_bucket`, `_sum` and `_count`. The label `model` is the virtual model, `-` if there
is none; `cap` is the name of the cap without its period, such as `client=team-a/tokens`.

This page is made from `src/adacompute/gateway/accounting/metrics.py`.
"""

COLUMNS = """# Columns of all files

The columns of every file that AdaCompute reads or writes. [Samples, runs and bundles](files.md)
says what the files are for. This page is made from the schemas in the code.
"""

SAMPLES = """One row per sample: input of `import` and `fit` (Parquet, CSV or JSON lines), and
`samples.parquet` of a run. A column that may be null may be absent, and so may `correct` if the
samples are graded. Columns of numbers named `signal_…` are
[signals of your own](policies.md#signals-of-your-own). Other columns are ignored."""

QUESTIONS = """One row per question: input of `collect` and `fit`, and of `import --gold`. The input
of `batch` needs only `question` ([input of a batch](../tutorials/batch.md#input))."""

DECISIONS = """`decisions-*.parquet` of the decision log, one row per request for which calls were
made. Any column may be null."""

LOGGED_SAMPLES = "`samples-*.parquet` of the decision log, one row per sample; input of `import`."

ANSWERS = """Output of `batch`, one row per question, in the order of the input. `limited` wins over
`unanswered`, and `error` over both ([output of a batch](../tutorials/batch.md#output))."""

CALLS = """Every call to the upstream is two lines of JSON in the `state_directory`: one
when it starts, one when it ends. `adacompute spend` sums them. A call without a last row
is charged its upper bound. A line with `lost` counts the rows of calls (`call_rows`) and the
`decisions` that could not be written since the last such line, because a disk was full."""

ERRORS = """# Errors

Every failure that you can expect: Python exceptions, HTTP errors of the gateway, and exit codes of
the commands. [Troubleshooting](../troubleshooting.md) lists messages with their causes.

## Exceptions

Every expected failure is an `AdaComputeError`. Its message says what is wrong, the value, the bound
and what to do. All can be imported from `adacompute`, and all can be pickled.

{exceptions}

## HTTP errors

The gateway's own errors have OpenAI's format. `code` is one of these, and
`adacompute_rejected_requests_total` counts most of them by it:

{codes}

Other errors have no code:

| status | why |
|---|---|
| 400 | the body is not valid; `param` names the member |
| 429 or 503, with `Retry-After` | the upstream answered all attempts so |
| 502 | the upstream cannot be reached, breaks off or sends invalid data |
| 500 | a defect of the gateway; the traceback is in its log |
| any other | the upstream's own status and message |

[Failures](../how-to/observe.md#failures) says what is retried.

## Exit codes

{exit_codes}

`adacompute collect` also exits with 1 if samples are still missing; run the same command again.
"""
