"""Pages: the blocks of a page of documentation, run as a reader would run them.

A page is run from top to bottom in a directory of its own. Commands of the package that stand alone
on their line are run in this process, which saves the time to start it; all other blocks of `sh`
are run by bash. Servers run in the background until the page ends. What a block of `python` prints
must be on the page. A block whose first line is a comment with a file name is written to that file.
Ports are replaced by free ones, in files too; the port after a known one stays the port after it.
The process id of a server is in the file PORT.pid, with the port that the page shows. pip does
nothing: .ci/run has installed everything. Invisible blocks find the repository at $REPOSITORY. It
knows nothing of what the commands do.
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
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from adacompute.cli import main as command_line
from test_support.gateways import free_port

ROOT = Path(__file__).resolve().parents[1]
SERVERS = {
    "adacompute serve": 8000,
    "python -m adacompute.testing.llama": 8080,
    "python -m adacompute.testing.fake_openai": 0,
}
"""Commands that do not end, and their default ports."""

NUMBER = re.compile(r",? mean of \d fold assignments|[+-]?\d[\d.,]*")
FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")
"""First line of a block that is written to a file."""

CHECK = "--check"
BLOCK_TIMEOUT_S = 600
READY_S = 120
PRELUDE = "set -euo pipefail; pip() { :; }\n"
PORT = re.compile(r"((?:127\.0\.0\.1:|--port |\bport = ))(\d{2,5})\b")
COMMAND = re.compile(r"adacompute (?!serve\b)[^$`|&;<>*~]*")
"""A command of the package that needs no shell."""


class Workspace:
    """The environment of one page: a directory, the running servers, and a free port per port.

    Unless it is exact, numbers that a block prints may be others than on the page.
    """

    def __init__(self, directory: Path, *, is_exact: bool = True) -> None:
        self.directory, self.is_exact = directory, is_exact
        self.ports: dict[int, int] = {}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(directory),
            "UPSTREAM_KEY": "secret",
            "GATEWAY_TOKEN": "token-of-the-pages-0123456789",
            "REPOSITORY": str(ROOT),
        }

    def run(self, example: Example) -> None:
        """Run a block of shell commands; servers run until the page ends."""
        text = self.on_free_ports(str(example.parsed))
        lines = text.replace("\\\n", " ").splitlines()
        serving = [line for line in lines if line.startswith(tuple(SERVERS)) and CHECK not in line]
        for line in serving:
            self._serve(line)
        if serving:
            text = "\n".join(line for line in lines if line not in serving)
        own = [line for line in text.replace("\\\n", " ").splitlines() if line.strip(" ")]
        commands = [line for line in own if not line.lstrip().startswith(("#", "pip "))]
        if all(COMMAND.fullmatch(line.partition(" #")[0].strip()) for line in commands):
            for line in commands:
                code, output = self._run_here(line)
                assert code == 0, f"{where(example)}:\n{line}\n{output}"
            return
        done = subprocess.run(
            ["bash", "-c", PRELUDE + text],
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
            text = self.on_free_ports(str(example.parsed))
            (self.directory / named[1]).write_text(text, encoding="utf-8")
        return named is not None

    def close(self) -> None:
        """Stop the servers."""
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            server.wait(READY_S)

    def on_free_ports(self, text: str) -> str:
        """Replace every port of a text by a free one."""

        def free(found: re.Match[str]) -> str:
            return f"{found[1]}{self._free(int(found[2]))}"

        return PORT.sub(free, text)

    def _free(self, port: int) -> int:
        before = self.ports.get(port - 1)
        return self.ports.setdefault(port, free_port() if before is None else before + 1)

    def _run_here(self, line: str) -> tuple[int, str]:
        """Run a command of the package in this process; return its exit code and its output."""
        _, *words = shlex.split(line, comments=True)
        output = io.StringIO()
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            mock.patch.object(sys, "argv", ["adacompute", *words]),
            mock.patch.dict(os.environ, self.environment, clear=True),
            contextlib.chdir(self.directory),
        ):
            try:
                command_line.main()
            except SystemExit as stopped:
                return int(stopped.code or 0), output.getvalue()
        return 0, output.getvalue()

    def _serve(self, line: str) -> None:
        name = next(name for name in SERVERS if line.startswith(name))
        option = re.search(r"--port (\d+)", line)
        config = re.search(r"--config ([^\s=]+)(?!\S)", line)
        if option is None and config:
            text = (self.directory / config[1]).read_text(encoding="utf-8")
            option = re.search(r"^port = (\d+)", text, re.MULTILINE)
        port = int(option[1]) if option else self._free(SERVERS[name])
        shown = next((shown for shown, free in self.ports.items() if free == port), port)
        words = shlex.split(line, comments=True) + ([] if option else ["--port", str(port)])
        output = self.directory / f"{port}.out"
        with output.open("wb") as out:
            server = subprocess.Popen(
                words,
                cwd=self.directory,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.servers.append(server)
        (self.directory / f"{shown}.pid").write_text(str(server.pid))
        started = time.monotonic()
        while time.monotonic() < started + READY_S and server.poll() is None:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{line}:\n{output.read_text()}")


def where(example: Example) -> str:
    """Return the page and the line of a block."""
    return f"{Path(example.path).name}, line {example.line}"


def run_shell(example: Example) -> None:
    """Run a block of shell commands."""
    example.namespace["workspace"].run(example)


def run_python(example: Example) -> None:
    """Run a block of Python, or write it to the file that it names."""
    workspace = example.namespace["workspace"]
    if workspace.write(example):
        compile(str(example.parsed), where(example), "exec")
        return
    names = {name: value for name, value in example.namespace.items() if name != "workspace"}
    code = compile(str(example.parsed), where(example), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102 - our own documentation
    output, text = printed.getvalue().strip(), example.document.text
    if not workspace.is_exact:
        output, text = (" ".join(NUMBER.sub("", one).split()) for one in (output, text))
    assert output in text, f"{where(example)} prints {output!r}; the page does not contain it"
    example.namespace.update(names)


def read_toml(example: Example) -> None:
    """Parse a block of TOML, and write it to the file that it names."""
    tomllib.loads(str(example.parsed))
    example.namespace["workspace"].write(example)


def parse_json(example: Example) -> None:
    """Parse a block of JSON."""
    json.loads(str(example.parsed))


RUN = {"sh": run_shell, "python": run_python, "toml": read_toml, "json": parse_json}
SYBIL = Sybil([SkipParser(), *(CodeBlockParser(name, does) for name, does in RUN.items())])
"""Finds the blocks of a page."""


@contextlib.contextmanager
def open_workspace(directory: Path, *, is_exact: bool = True) -> Iterator[Workspace]:
    """Yield a workspace in an empty directory, and stop its servers at the end."""
    workspace = Workspace(directory, is_exact=is_exact)
    try:
        yield workspace
    finally:
        workspace.close()
