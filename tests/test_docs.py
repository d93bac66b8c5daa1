"""Every block of the documentation is run, or is one of the few exceptions.

`test_support/pages.py` says how a page is run. Blocks of `text` are only shown and must not contain
a command. `<!-- skip: next "exception" -->` skips a block and names one of the exceptions below,
and `<!-- invisible-code-block: sh` contains what a reader already has and a new directory has not.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Document
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from adacompute.cli.main import list_commands
from adacompute.testing.llama import missing_requirement
from test_support.pages import FILE_NAME, RUN, SYBIL, Workspace, open_workspace

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "adacompute"
SHIPPED = SOURCE / "datasets" / "shipped"
DOCS = ROOT / "docs"
GENERATED = {
    DOCS / "questions.md",
    *(DOCS / "reference" / f"{name}.md" for name in ("command-line", "configuration", "columns")),
}
PAGES = {
    str(page.relative_to(ROOT)): page
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        SHIPPED / "arithmetic.md",
        *sorted(page for page in DOCS.rglob("*.md") if page not in GENERATED),
    )
}
EXCEPTIONS = {
    "a cluster": "needs Kubernetes, a registry of images, or machines with GPUs",
    "CI runs it": "installs, tests or changes the repository; .ci/run or a test does the same",
    "a release": "for maintainers who publish a release",
    "data of others": "question sets or samples that do not come with the package, and hours",
    "your own service": "a service, an account or traffic that only its owner has",
    "a long calibration": "minutes of computation; tests/stages/test_calibrate.py runs a small one",
}
"""Why a block is not run; at most six."""

SHOWN = {"text", "csv"}
"""Languages of blocks that are only shown."""

COMMAND = re.compile(r"^\s*(\$|adacompute|pip|python3?|curl|export|just)\s")


COMMANDS = list_commands()


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of every block that is not a Sphinx directive."""
    document = Document(page.read_text(), str(page))
    for region in RawFencedCodeBlockLexer(re.compile(r"(?P<language>.*)$\n", re.MULTILINE))(
        document
    ):
        if not region.lexemes["language"].startswith("{"):
            yield region.lexemes["language"], str(region.lexemes["source"])


BLOCKS = [(name, *block) for name, page in PAGES.items() for block in blocks(page)]
"""The page, the language and the text of every block."""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with open_workspace(tmp_path) as opened:
        yield opened


RUN_FIRST = ("README.md", "docs/get-started.md", "docs/tutorials/")
"""Pages that CI runs; the commands of the others are parsed, and all pages are run at night."""

WITH_BLOCKS = sorted({name for name, *_ in BLOCKS})


@pytest.mark.usefixtures("shared_results", "own_policies")
@pytest.mark.parametrize("name", [name for name in WITH_BLOCKS if name.startswith(RUN_FIRST)])
def test_blocks_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fold assignment takes a third of the time of the three that users get."""
    with open_workspace(tmp_path, is_exact=False) as workspace:
        run_page(name, workspace, monkeypatch)


@pytest.mark.nightly
@pytest.mark.usefixtures("shared_results", "all_assignments", "own_policies")
@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_a_page_prints_what_users_get(
    name: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page(name, workspace, monkeypatch)


def run_page(name: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in its workspace."""
    document = SYBIL.parse(PAGES[name])
    if "adacompute.testing.llama" in document.text and (reason := missing_requirement()):
        pytest.skip(reason)
    monkeypatch.chdir(workspace.directory)
    for example in document.examples():
        example.namespace["workspace"] = workspace
        with contextlib.suppress(SkipTest):
            example.evaluate()


def test_every_block_is_run_or_only_shown() -> None:
    assert [
        (name, text)
        for name, language, text in BLOCKS
        if (language not in RUN and language not in SHOWN)
        or (language in SHOWN and any(COMMAND.match(line) for line in text.splitlines()))
    ] == []


def test_a_skipped_block_names_one_of_at_most_six_exceptions() -> None:
    assert len(EXCEPTIONS) <= 6
    named = [
        (name, marked)
        for name, page in PAGES.items()
        for marked in re.findall(r"^ *<!--+ *skip:(.*?)--+>", page.read_text(), re.MULTILINE)
    ]
    assert {marked for _, marked in named} >= {f' next "{one}" ' for one in EXCEPTIONS}
    assert [one for one in named if one[1].strip()[6:-1] not in EXCEPTIONS] == []


def split_command(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of a command, of one word or two, and what follows."""
    size = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:size]), words[size:]


def test_every_command_can_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _, language, text in BLOCKS:
        if named := FILE_NAME.match(text):  # files of options are read when a command is parsed
            Path(named[1]).write_text(text)
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith("adacompute "):
                name, words = split_command(shlex.split(line, comments=True)[1:])
                COMMANDS[name].make_context(name, words)


def test_commands_in_sentences_exist_and_have_these_options() -> None:
    offences = []
    for page in PAGES.values():
        for command in re.findall(r"`adacompute ([^`]+)`", page.read_text()):
            if command.startswith("-"):
                continue
            name, words = split_command(command.split())
            known = {option for one in COMMANDS[name].params for option in one.opts}
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            if not given <= known:
                offences.append(f"adacompute {command}")
    assert offences == []


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|<!--).*?^(```|-->)$", re.MULTILINE | re.DOTALL)


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    hidden = FENCE.sub(lambda block: block[0].replace("#", " "), page.read_text())
    return {anchor_of(one[1]) for one in re.finditer(r"^#+ (.+)$", hidden, re.MULTILINE)}


def test_links_lead_to_pages_and_headings_that_exist() -> None:
    """Sphinx checks links of the documentation; this also checks them on GitHub."""
    offences = []
    for page_name, page in PAGES.items():
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if re.match(r"[a-z]+:", link) or target in GENERATED:
                continue  # Sphinx checks the generated ones: they are made when it runs
            if not target.exists() or (anchor and anchor not in anchors(target)):
                offences.append((page_name, link))
    assert offences == []


QUESTIONS = tomllib.loads((DOCS / "questions.toml").read_text())["questions"]


def test_questions_of_users_are_answered_by_sections_that_exist() -> None:
    answers = [one["answer"].partition("#") for one in QUESTIONS]
    assert [a for a in answers if a[2] not in anchors(ROOT / a[0])] == []


def test_a_missing_reference_stops_the_build() -> None:
    config = (DOCS / "conf.py").read_text()
    assert "suppress_warnings" not in config
    assert "-W" in (ROOT / "justfile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "contribute" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    found = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]
    found += [path.relative_to(ROOT) for path in (ROOT / "reproduction").glob("*.py")]
    assert {name for name in named if not any(path.match(name) for path in found)} == set()


def test_the_blocks_of_the_pages_are_found() -> None:
    found = [text for _, language, text in BLOCKS if language == "sh"]
    assert sum(text.count("adacompute ") for text in found) > 40
