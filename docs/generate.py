"""Reference pages: commands, settings, metrics, errors and columns, made from the code.

``write_pages`` writes every page before Sphinx reads them. The pages are not committed: what they
say is in the code, beside what it describes.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from definitions import define
from generate_commands import command_line

from adacompute.batch.answers import ANSWER_COLUMNS
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
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import ModelConfig, UpstreamConfig
from adacompute.storage.calls import END_COLUMNS, START_COLUMNS
from adacompute.storage.decision_columns import DECISION_COLUMNS, LOGGED_SAMPLE_COLUMNS

PAGES = ("command-line", "configuration", "columns")
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
    texts = (command_line(), f"{configuration()}\n{metrics()}\n{errors()}", columns())
    for name, text in zip(PAGES, texts, strict=True):
        (directory / f"{name}.md").write_text(text, encoding="utf-8")


def configuration() -> str:
    """Return every setting of the gateway."""
    lines = [CONFIGURATION]
    for title, (kind, introduction) in TABLES.items():
        lines += [f"## `{title}`", "", introduction, ""]
        prefix = title.strip("[]").removeprefix("serve").removesuffix(".NAME").strip(".")
        for field, meaning in settings(kind):
            default = default_of(field)
            words = {"required": " Required.", "–": ""}.get(default, f" Default: {default}.")
            note = f"*{type_name(str(field.type))}*"
            lines += define(field.name, f"{prefix}-{field.name}", note, meaning + words)
    return "\n".join(lines)


def metrics() -> str:
    """Return every metric."""
    found = [(name, "counter", labels, text) for name, (text, labels) in COUNTERS.items()]
    found += [(name, "histogram", ("model",), text) for name, (text, _) in HISTOGRAMS.items()]
    found += [(name, "gauge", ("model",), text) for name, text in GAUGES.items()]
    found += [(name, "gauge", ("cap",), text) for name, (text, _) in CAP_GAUGES.items()]
    found += [(name, "gauge", (), text) for name, text in STORE_GAUGES.items()]
    found += [(IN_FLIGHT, "gauge", (), IN_FLIGHT_HELP)]
    found += [(NOT_READY, "gauge", ("cause",), NOT_READY_HELP)]
    lines = [METRICS]
    for name, kind, labels, text in sorted(found):
        by = f" by {', '.join(f'`{one}`' for one in labels)}" if labels else ""
        lines += define(f"{PREFIX}{name}", name, f"*{kind}*{by}", text)
    return "\n".join(lines)


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
        prefix = title.split()[0]
        lines += [f"## {title}", "", introduction, ""]
        for name, (kind, meaning) in found.items():
            note = f"*{_arrow_name(kind, name in required or not is_input)}*"
            lines += define(name, f"{prefix}-{name}", note, meaning)
    lines += ["## Account of calls", "", CALLS, ""]
    for title, members in (("First", START_COLUMNS), ("Last", END_COLUMNS)):
        lines += [f"### {title} row of a call", ""]
        for name, meaning in members.items():
            lines += define(name, f"{title}-{name}", "", meaning)
    return "\n".join(lines)


def errors() -> str:
    """Return the HTTP errors of the gateway."""
    codes = []
    for code, (status, meaning) in sorted(ERROR_CODES.items(), key=lambda one: one[1][0]):
        codes += define(code, f"code-{code}", f"*{status}*", meaning)
    return ERRORS.format(codes="\n".join(codes))


def questions(source: Path) -> str:
    """Return the page of the questions that users have, with where each is answered."""
    found = tomllib.loads(source.read_text(encoding="utf-8"))["questions"]
    return "\n".join(
        [
            "# Questions\n\nWhat users ask, and where this documentation answers it.\n",
            *(f"- [{one['question']}]({one['answer'].removeprefix('docs/')})" for one in found),
            "",
        ]
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
    return f"`{json.dumps(value)}`"


def _arrow_name(kind: object, is_required: bool) -> str:  # noqa: FBT001 - private
    name = ARROW_NAMES.get(str(kind), str(kind).replace("list<item: float>", "list of float32"))
    name = name.replace("list<item: int32>", "list of int32")
    return name if is_required else f"{name} or null"


CONFIGURATION = """# Configuration of the gateway

Every setting of the TOML file that `adacompute serve --config FILE` reads, with its type, its
default and its meaning. A number in brackets is the status that a client gets beyond the limit.
An unknown setting is an error that lists the known ones. `${NAME}` in a string is replaced by the
environment variable. Relative paths start at the directory of the file. To check a file without
serving, add `--check`:

```sh
adacompute serve --config gateway.toml --check
```
"""

METRICS = """## Metrics

Every metric on `/metrics` of the admin port, for Prometheus. [Observe the
gateway](../how-to/observe.md) says which ones to look at, and which alerts to set. Histograms also
have the usual `_bucket`, `_sum` and `_count`. The label `model` is the virtual model, `-` if there
is none; `cap` is the name of the cap without its period, such as `total/model=my-model/tokens`.
"""

COLUMNS = """# Columns of all files

The columns of every file that AdaCompute reads or writes. [Samples, runs and bundles](files.md)
says what the files are for.
"""

SAMPLES = """One row per sample: input of `fit` and `solve` (Parquet, CSV or JSON lines), and
`samples.parquet` of a run. A column that may be null may be absent, and so may `correct` if the
samples are graded. Columns of numbers named `signal_…` are
[signals of your own](policies.md#signals-of-your-own). Other columns are ignored."""

QUESTIONS = """One row per question: input of `collect` and `fit`, and of `import --gold`. The input
of `batch` needs only `question` ([input of a batch](../tutorials/batch.md#input))."""

DECISIONS = """`decisions-*.parquet` of the decision log, one row per request for which calls were
made. Any column may be null."""

LOGGED_SAMPLES = "`samples-*.parquet` of the decision log, one row per sample; input of `fit`."

ANSWERS = """Output of `batch`, one row per question, in the order of the input. `limited` wins over
`unanswered`, and `error` over both ([output of a batch](../tutorials/batch.md#output))."""

CALLS = """Every call to the upstream is two lines of JSON in the `state_directory`: one
when it starts, one when it ends. `adacompute spend` sums them. A call without a last row
is charged its upper bound. A line with `lost` counts the rows of calls (`call_rows`) and the
`decisions` that could not be written since the last such line, because a disk was full."""

ERRORS = """## HTTP errors

The gateway's own errors have OpenAI's format. `code` is one of these, and
`adacompute_rejected_requests_total` counts most of them by it:

{codes}

Other errors have no code:

| status | why |
|---|---|
| 400 | the body is not valid; `param` names the member |
| 429 or 503, with `Retry-After` | the upstream answered all attempts so |
| 502 | the upstream breaks off or sends invalid data |
| 500 | a defect of the gateway; the traceback is in its log |
| any other | the upstream's own status and message |

[Failures](../how-to/observe.md#failures) says what is retried.
"""
