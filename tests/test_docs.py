"""The documentation is so: every block of every page is run, or says beside it why it is not.

A page is followed from top to bottom in a directory of its own, as a reader would. Blocks of `sh`
are run by bash, servers in them in the background; what a block of `python` prints must stand in
the page; a block whose first line is a comment with a
file's name is that file; blocks of `text` show and are not run, so no command may stand in them.
`<!-- skip: next "why" -->` leaves a block out, and `<!-- invisible-code-block: sh` holds what a
reader has by then and a new directory has not. Ports are free ones, a server's process is in the
file PORT.pid by the port that the page shows, and pip does nothing: what it installs was installed
by .ci/run.
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
from adacompute.testing.llama import missing

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "src" / "adacompute" / "datasets" / "shipped"
GENERATED = {"cli.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    SHIPPED / "arithmetic.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED),
]
SHOWN = {"text", "csv"}
"""Languages that only show something."""

COMMAND = re.compile(r"^\s*(\$|adacompute|pip|python3?|curl|export|just)\s")
SERVERS = {
    "adacompute serve": 8000,
    "python -m adacompute.testing.llama": 8080,
    "python -m adacompute.testing.fake_openai": 0,
}
"""Commands that do not end, and where they listen unless told."""

CHECK = "--check"
PATIENCE_S = 600
READY_S = 120
PRELUDE = "set -euo pipefail; pip() { :; }\n"


class Desk:
    """Where one reader sits: a directory, the servers that run, and which port stands for which."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ports: defaultdict[int, int] = defaultdict(find_port)
        self.servers: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(place),
            "UPSTREAM_KEY": "secret",
        }

    def run(self, example: Example) -> None:
        """Run a block of the shell: what ends, and what serves until the page ends."""
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
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{where(example)}:\n{text}\n{done.stdout}\n{done.stderr}"

    def write(self, example: Example) -> bool:
        """Write the file that a block is, if its first line names one."""
        named = re.match(r"# ([\w-]+\.\w+)\n", example.parsed)
        if named:
            (self.place / named[1]).write_text(str(example.parsed))
        return named is not None

    def close(self) -> None:
        """Stop what serves."""
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
        told = re.search(r"--port (\d+)", line)
        port = int(told[1]) if told else self.ports[SERVERS[name]]
        named = next(shown for shown, free in self.ports.items() if free == port)
        words = shlex.split(line, comments=True) + ([] if told else ["--port", str(port)])
        place, environment, said = self.place, self.environment, self.place / f"{port}.out"
        with said.open("wb") as out:
            server = subprocess.Popen(
                words, cwd=place, env=environment, stdout=out, stderr=subprocess.STDOUT
            )
        self.servers.append(server)
        (place / f"{named}.pid").write_text(str(server.pid))
        begun = time.monotonic()
        while time.monotonic() < begun + READY_S and server.poll() is None:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        pytest.fail(f"{line}:\n{said.read_text()}")


def find_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def where(example: Example) -> str:
    return f"{Path(example.path).name}, line {example.line}"


def run_shell(example: Example) -> None:
    example.namespace["desk"].run(example)


def run_python(example: Example) -> None:
    desk = example.namespace["desk"]
    if desk.write(example):
        compile(str(example.parsed), where(example), "exec")
        return
    names = {name: value for name, value in example.namespace.items() if name != "desk"}
    code = compile(str(example.parsed), where(example), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102 - our own documentation
    said = printed.getvalue().strip()
    assert said in example.document.text, (
        f"{where(example)} prints {said!r}; the page does not say so"
    )
    example.namespace.update(names)


def read_toml(example: Example) -> None:
    tomllib.loads(str(example.parsed))
    example.namespace["desk"].write(example)


def parse_json(example: Example) -> None:
    json.loads(str(example.parsed))


RUN = {"sh": run_shell, "python": run_python, "toml": read_toml, "json": parse_json}
SYBIL = Sybil([SkipParser(), *(CodeBlockParser(name, does) for name, does in RUN.items())])


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of every block that is not a directive of Sphinx."""
    document = Document(page.read_text(), str(page))
    for region in RawFencedCodeBlockLexer(re.compile(r"(?P<language>.*)$\n", re.MULTILINE))(
        document
    ):
        if not region.lexemes["language"].startswith("{"):
            yield region.lexemes["language"], str(region.lexemes["source"])


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs(
    page: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = SYBIL.parse(page)
    if "adacompute.testing.llama" in document.text and (reason := missing()):
        pytest.skip(reason)
    monkeypatch.chdir(desk.place)
    for example in document.examples():
        example.namespace["desk"] = desk
        with contextlib.suppress(SkipTest):
            example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_run_or_only_shows(page: Path) -> None:
    for language, text in blocks(page):
        assert language in RUN or language in SHOWN, f"a block of {language!r}: {text}"
        if language in SHOWN:
            assert not any(COMMAND.match(line) for line in text.splitlines()), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_says_why(page: Path) -> None:
    for marked in re.findall(r"^<!--+ *skip:(.*?)--+>", page.read_text(), re.MULTILINE):
        assert re.fullmatch(r' next ".{15,}" ', marked), marked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_not_run_can_be_typed(page: Path) -> None:
    for language, text in blocks(page):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith("adacompute "):
                _, name, *words = shlex.split(line, comments=True)
                cli.commands[name].make_context(name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist_and_take_what_they_are_given(page: Path) -> None:
    for command in re.findall(r"`adacompute ([^`]+)`", page.read_text()):
        name, *words = command.split()
        if name.startswith("-"):
            continue
        known = {option for one in cli.commands[name].params for option in one.opts}
        given = {word.split("=")[0] for word in words if word.startswith("--")}
        assert given <= known, f"adacompute {command}"


def test_what_is_promised_to_be_run_is_found() -> None:
    found = [text for language, text in blocks(ROOT / "README.md") if language == "sh"]
    assert sum(text.count("adacompute ") for text in found) > 10


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
def test_a_page_that_is_wrong_fails(tmp_path: Path, desk: Desk, text: str, why: str | None) -> None:
    (tmp_path / "wrong.md").write_text(text)
    document = SYBIL.parse(tmp_path / "wrong.md")
    (example,) = document.examples()
    example.namespace["desk"] = desk
    with pytest.raises(BaseException, match=why):
        example.evaluate()
