"""Every block of the documentation is run, or says why it is not.

A page is run from top to bottom in a directory of its own, as a reader would run it. Blocks of `sh`
are run by bash; servers in them run in the background. What a block of `python` prints must be on
the page. A block whose first line is a comment with a file name is written to that file. Blocks of
`text` are only shown and must not contain a command. `<!-- skip: next "why" -->` skips a block,
and `<!-- invisible-code-block: sh` contains what a reader already has and a new directory has not.
Ports are replaced by free ones. The process id of a server is in the file PORT.pid, with the port
that the page shows. pip does nothing: .ci/run has installed everything.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from adacompute.cli.main import cli
from adacompute.testing.llama import missing_requirement
from test_support.gateways import free_port

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "adacompute"
SHIPPED = SOURCE / "datasets" / "shipped"
DOCS = ROOT / "docs"
GENERATED = {
    DOCS / "reference" / f"{name}.md"
    for name in ("command-line", "configuration", "metrics", "columns", "errors")
} | {DOCS / "research" / "design" / note.name for note in (ROOT / "design").glob("0*.md")}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    SHIPPED / "arithmetic.md",
    *sorted(page for page in DOCS.rglob("*.md") if page not in GENERATED),
]
NOTEBOOK = DOCS / "tutorials" / "notebook.md"
"""tests/test_notebook.py runs its blocks."""


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


SHOWN = {"text", "csv"}
"""Languages of blocks that are only shown."""

COMMAND = re.compile(r"^\s*(\$|adacompute|pip|python3?|curl|export|just)\s")
SERVERS = {
    "adacompute serve": 8000,
    "python -m adacompute.testing.llama": 8080,
    "python -m adacompute.testing.fake_openai": 0,
}
"""Commands that do not end, and their default ports."""

FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")
"""First line of a block that is written to a file."""

CHECK = "--check"
BLOCK_TIMEOUT_S = 600
READY_S = 120
PRELUDE = "set -euo pipefail; pip() { :; }\n"


class Workspace:
    """The environment of one page: a directory, the running servers, and a free port per port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports: defaultdict[int, int] = defaultdict(free_port)
        self.servers: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(directory),
            "UPSTREAM_KEY": "secret",
        }

    def run(self, example: Example) -> None:
        """Run a block of shell commands; servers run until the page ends."""
        text = self._on_free_ports(str(example.parsed))
        lines = text.replace("\\\n", " ").splitlines()
        serving = [line for line in lines if line.startswith(tuple(SERVERS)) and CHECK not in line]
        for line in serving:
            self._serve(line)
        if serving:
            text = "\n".join(line for line in lines if line not in serving)
        command = ["bash", "-c", PRELUDE + text]
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{where(example)}:\n{text}\n{done.stdout}\n{done.stderr}"

    def write(self, example: Example) -> bool:
        """Write a block to the file that its first line names, if it does."""
        named = FILE_NAME.match(example.parsed)
        if named:
            (self.directory / named[1]).write_text(str(example.parsed))
        return named is not None

    def close(self) -> None:
        """Stop the servers."""
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            server.wait(READY_S)

    def _on_free_ports(self, text: str) -> str:
        def free(found: re.Match[str]) -> str:
            return f"{found[1]}{self.ports[int(found[2])]}"

        return re.sub(r"((?:127\.0\.0\.1:|--port ))(\d{2,5})\b", free, text)

    def _serve(self, line: str) -> None:
        name = next(name for name in SERVERS if line.startswith(name))
        option = re.search(r"--port (\d+)", line)
        port = int(option[1]) if option else self.ports[SERVERS[name]]
        named = next(shown for shown, free in self.ports.items() if free == port)
        words = shlex.split(line, comments=True) + ([] if option else ["--port", str(port)])
        directory, environment = self.directory, self.environment
        output = directory / f"{port}.out"
        with output.open("wb") as out:
            server = subprocess.Popen(
                words, cwd=directory, env=environment, stdout=out, stderr=subprocess.STDOUT
            )
        self.servers.append(server)
        (directory / f"{named}.pid").write_text(str(server.pid))
        started = time.monotonic()
        while time.monotonic() < started + READY_S and server.poll() is None:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        pytest.fail(f"{line}:\n{output.read_text()}")


def where(example: Example) -> str:
    return f"{Path(example.path).name}, line {example.line}"


def run_shell(example: Example) -> None:
    example.namespace["workspace"].run(example)


def run_python(example: Example) -> None:
    workspace = example.namespace["workspace"]
    if workspace.write(example):
        compile(str(example.parsed), where(example), "exec")
        return
    names = {name: value for name, value in example.namespace.items() if name != "workspace"}
    code = compile(str(example.parsed), where(example), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102 - our own documentation
    output = printed.getvalue().strip()
    assert output in example.document.text, (
        f"{where(example)} prints {output!r}; the page does not contain it"
    )
    example.namespace.update(names)


def read_toml(example: Example) -> None:
    tomllib.loads(str(example.parsed))
    example.namespace["workspace"].write(example)


def parse_json(example: Example) -> None:
    json.loads(str(example.parsed))


RUN = {"sh": run_shell, "python": run_python, "toml": read_toml, "json": parse_json}
SYBIL = Sybil([SkipParser(), *(CodeBlockParser(name, does) for name, does in RUN.items())])


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of every block that is not a Sphinx directive."""
    document = Document(page.read_text(), str(page))
    for region in RawFencedCodeBlockLexer(re.compile(r"(?P<language>.*)$\n", re.MULTILINE))(
        document
    ):
        if not region.lexemes["language"].startswith("{"):
            yield region.lexemes["language"], str(region.lexemes["source"])


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = Workspace(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != NOTEBOOK], ids=name_page)
def test_blocks_of_a_page_run(
    page: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = SYBIL.parse(page)
    if "adacompute.testing.llama" in document.text and (reason := missing_requirement()):
        pytest.skip(reason)
    monkeypatch.chdir(workspace.directory)
    for example in document.examples():
        example.namespace["workspace"] = workspace
        with contextlib.suppress(SkipTest):
            example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_block_is_run_or_only_shown(page: Path) -> None:
    for language, text in blocks(page):
        assert language in RUN or language in SHOWN, f"a block of {language!r}: {text}"
        if language in SHOWN:
            assert not any(COMMAND.match(line) for line in text.splitlines()), text


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_a_skipped_block_says_why(page: Path) -> None:
    for marked in re.findall(r"^<!--+ *skip:(.*?)--+>", page.read_text(), re.MULTILINE):
        assert re.fullmatch(r' next ".{15,}" ', marked), marked


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_command_can_be_parsed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in blocks(page):
        if named := FILE_NAME.match(text):  # files of options are read when a command is parsed
            Path(named[1]).write_text(text)
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith("adacompute "):
                _, name, *words = shlex.split(line, comments=True)
                cli.commands[name].make_context(name, words)


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_commands_in_sentences_exist_and_have_these_options(page: Path) -> None:
    for command in re.findall(r"`adacompute ([^`]+)`", page.read_text()):
        name, *words = command.split()
        if name.startswith("-"):
            continue
        known = {option for one in cli.commands[name].params for option in one.opts}
        given = {word.split("=")[0] for word in words if word.startswith("--")}
        assert given <= known, f"adacompute {command}"


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|<!--).*?^(```|-->)$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    """Sphinx checks links of the documentation; this also checks them on GitHub."""
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if target in GENERATED:
            continue  # Sphinx checks these: they are made when it runs
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_a_missing_reference_stops_the_build() -> None:
    config = (DOCS / "conf.py").read_text()
    assert "suppress_warnings" not in config
    assert "-W" in (ROOT / "justfile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "contribute" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    found = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]
    found += [path.relative_to(ROOT) for path in (ROOT / "reproduction").glob("*.py")]
    assert len(named) > 20
    assert {name for name in named if not any(path.match(name) for path in found)} == set()


def test_the_blocks_of_the_pages_are_found() -> None:
    found = [text for page in PAGES for language, text in blocks(page) if language == "sh"]
    assert sum(text.count("adacompute ") for text in found) > 40


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```sh\nfalse\n```\n", "line 1"),
        ("```sh\nadacompute estimate nowhere\n```\n", "nowhere"),
        ("```python\nassert False\n```\n", None),
        ("```python\nprint(6 * 7)\n```\n", "42"),
        ("```toml\na = \n```\n", None),
        (
            "```sh\nadacompute serve --bundle nowhere --base-url http://127.0.0.1:1/v1\n```\n",
            "nowhere",
        ),
    ],
)
def test_a_wrong_page_fails(
    tmp_path: Path, workspace: Workspace, text: str, why: str | None
) -> None:
    (tmp_path / "wrong.md").write_text(text)
    document = SYBIL.parse(tmp_path / "wrong.md")
    (example,) = document.examples()
    example.namespace["workspace"] = workspace
    with pytest.raises(BaseException, match=why):
        example.evaluate()
