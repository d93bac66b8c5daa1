"""Old names and private words do not return.

Each table lists names that were replaced, and the check beside it looks where such a name can
appear: options in the help and the documentation, JSON keys in the source, metrics in the gateway
and in deploy/, identifiers in the syntax trees. CHANGELOG.md and design/ are history and exempt.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import pytest

from adacompute.cli.main import list_commands

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "adacompute"
MODULES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "reproduction").glob("*.py")])
GENERATED = {
    "modules",
    "questions",
    "command-line",
    "configuration",
    "metrics",
    "columns",
    "errors",
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    SOURCE / "datasets" / "shipped" / "arithmetic.md",
    ROOT / "docs" / "conf.py",
    ROOT / "docs" / "generate.py",
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.stem not in GENERATED and page.parent.name != "commands"
    ),
]
DEPLOYED = [path for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file()]
PROGRAMS = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "scripts").glob("*.py")])

Found = tuple[str, set[str]]
"""A place, and the old names in it."""

OPTIONS = {
    "--ladder": "--levels",
    "--no-nulls": "--drop-unparsed",
    "--following": "--horizon",
    "--ties": "--tie-break",
    "--tariff": "--token-prices",
    "--key-env": "--api-key-env",
    "--count": "--max-questions",
    "--shots": "--few-shot",
    "--orders": "--permutations",
    "--figures": "--full-runs",
    "paper+": "extended",
    "honest|": "held-out|",
    "|honest": "|held-out",
    "LEDGER": "LOG",
}
"""Options, choices and arguments: in the help of every command and in the documentation."""

BUNDLE_COMMANDS = ("research calibrate", "serve")
"""Commands that take a bundle as ``--bundle PATH``, not as ``--policy``."""

SETTINGS = {
    "key": "upstream_api_key",
    "keys": "client_keys",
    "holdout": "audit_share",
    "holdout_most": "audit_max_share",
    "latency_s": "deadline_s",
    "pause_s": "shutdown_delay_s",
    "body_s": "body_timeout_s",
    "first_byte_s": "first_byte_timeout_s",
    "attempts": "max_attempts",
    "tariff": "token_prices",
}
"""Settings of the gateway: as fields in its settings, in deploy/ and in the documentation."""

SETTINGS_WITH_OTHER_MEANINGS = {"key", "keys", "latency_s"}
"""In the documentation these are a noun and a column of the samples as well."""

JSON_KEYS = {
    "more_questions": ("questions_needed", ""),
    "gain_by_redrawing": ("retry_gain", ""),
    "following": ("horizon", ""),
    "unreadable": ("unparsed", ""),
    "unreadable_share": ("unparsed_share", ""),
    "left_out": ("excluded", ""),
    "levels_left_out": ("levels_excluded", ""),
    "left_out_samples": ("excluded_samples", ""),
    "operating_level": ("arm", ""),
    "shared": ("samples_per_call", ""),
    "deciding_s": ("decision_s", ""),
    "decided": ("samples_used", "gateway storage"),
    "wanted": ("samples_planned", "gateway storage"),
    "seconds": ("latency_s", "gateway storage"),
    "source": ("question_source", "gateway storage/decisions.py"),
    "low": (
        "accuracy_low or gain_low",
        "evaluation stages/research/calibrate.py stages/contests.py cli",
    ),
    "high": (
        "accuracy_high or gain_high",
        "evaluation stages/research/calibrate.py stages/contests.py cli",
    ),
    "level": ("difficulty", "datasets"),
}
"""Keys of JSON documents, logs and tables: as text in the source, below the folders named."""

METRICS = {
    "passed_total": "passthrough_requests_total",
    "refused_total": "rejected_requests_total",
    "draws_total": "samples_total",
    "unreadable_total": "unparsed_samples_total",
    "no_question_total": "unmatched_prompts_total",
    "money_total": "cost_total",
    "open_requests": "requests_in_flight",
    "spent_mean": "request_cost_mean",
    "decision_seconds": "decision_duration_seconds",
    "request_seconds": "request_duration_seconds",
    "draws_per_request": "samples_per_request",
    "holdout_draws_total": "audit_samples_total",
    "holdout_agreed_total": "audit_agreements_total",
    "holdout_total": "audit_requests_total",
}
"""Metrics: in gateway/accounting/metrics.py, in deploy/ and in the documentation."""

IDENTIFIERS = {
    "AGAIN": "REPEAT_PROBABILITY",
    "Asked": "VirtualRequest, Problem",
    "Belief": "Posterior",
    "Bent": "ResampledCurve",
    "Bill": "CallUsage",
    "Broken": "PermanentFailure",
    "Chances": "StateMeasure",
    "Contest": "Experiment",
    "Cut": "Cutoff, ConnectionInterrupted",
    "Dial": "PriceSchedule",
    "Drawn": "SampledChoice",
    "Family": "PolicyFactory",
    "Gone": "ClientDisconnected",
    "HeldOut": "PriceSweep",
    "LENT": "SHRINKAGE",
    "Listed": "CommaSeparated",
    "Minute": "RateLimiter",
    "Mode": "CollectionLevel",
    "Opened": "ConnectionOwner",
    "Passed": "Forwarded",
    "Passing": "TransientFailure",
    "Patient": "ClientProtocol",
    "Prices": "TokenPrices",
    "Purse": "RequestModel",
    "Ran": "ReplayResult",
    "Recorded": "SampleSet",
    "Refusal": "UpstreamRejected",
    "Ruled": "RulePolicy",
    "SENDING": "CURRENT_CONNECTION",
    "SHADE": "PRICE_JITTER",
    "Stop": "OperatingPoint",
    "TURNS": "EM_STEPS",
    "_awake": "_with_keepalive",
    "_away": "_feature_distance",
    "_choose_lent": "_select_shrinkage",
    "_explain": "_send_error",
    "_forget": "apply_retention",
    "_hold": "_audit",
    "_let_in": "_is_authorized",
    "_persist": "_with_retries",
    "_puzzled": "_warned_models",
    "_wrong": "_rejection",
    "at_once": "samples_per_call",
    "behave": "response_profile",
    "believe": "fit_posterior",
    "climbs": "has_dot_segments",
    "deciding_s": "decision_s",
    "doubt": "expected_value_of_information",
    "dust": "tail",
    "even": "equalise",
    "flat_prior": "pooled_prior",
    "follow": "occupancy",
    "hear": "heartbeat",
    "hold_out": "sweep_prices",
    "introduce": "register",
    "key_text": "hash_text",
    "limited": "extra_costs",
    "name_text": "text_id",
    "number_samples": "encode_samples",
    "pass_on": "forward",
    "read_asked": "parse_request",
    "read_prices": "read_token_prices",
    "step_back": "continuation_value",
    "tickets": "mixing_uniform",
    "watched": "cancel_on_disconnect",
    "whole_cost": "quantise_cost",
    "why_passed": "passthrough_reason",
    "without_bill": "strip_usage",
}
"""Identifiers of the source, as they are defined there."""

IDENTIFIERS_BY_FOLDER = {
    "core": {"after_s"},
    "evaluation": {"following"},
    "stages": {"following"},
    "gateway": {"buy", "likely", "look", "settled", "spelled", "_spell", "_known", "lost", "held"},
    "storage": {"seal", "roll"},
    "policies": {"reach"},
    "collection": {"enter", "leave", "trouble"},
    "testing": {"held"},
}
"""Identifiers that are usual words elsewhere."""

WORDS = {"dear", "holdout", "ladder", "least", "lend", "lent", "mend", "most", "nulls", "purse"}
WORDS |= {"shade", "tariff", "tariffs", "told", "unread", "unreadable", "draws"}
# One word per idea: a question is not an instance, λ is the price.
WORDS |= {"instance", "instances", "datapoint", "lambda", "lmbda", "lam", "multiplier", "impl"}
WORDS |= {"utils", "util", "manager", "abstract"}
"""Words that no identifier of the source may contain."""

PROSE = re.compile(
    r"\b(dear|dearer|dearest|holdouts?|ladders?|mend|mends|mended|mending|(?<!pa\.)nulls|purse"
    r"|tariffs?|told|unreadable)\b",
    re.IGNORECASE,
)
"""Words that no text of the source, of the help and of the documentation may contain.

``pa.nulls`` is a function of pyarrow."""

RATE = re.compile(
    r"\b(samples?|draws?|tokens?|calls?|seconds|rows?|times|once) "
    r"an? (question|request|sample|call)\b"
)
"""A rate is written with "per": "samples per question"."""

EXCEPTIONS = {
    "src/adacompute/datasets/logs/inspect_logs.py": {"level"},  # metadata of the logs
    "src/adacompute/datasets/logs/lm_eval_logs.py": {"level"},  # as above
    "src/adacompute/datasets/layout.py": {"level", "operating_level"},  # public files
    "src/adacompute/datasets/rows.py": {"operating_level", "shared"},  # old files
}
"""Names that a check may find all the same, by file."""


def in_folders(path: Path, folders: str) -> bool:
    """Whether a module lies below one of the folders; all do where none are named."""
    base = SOURCE if path.is_relative_to(SOURCE) else ROOT
    place = path.relative_to(base).as_posix()
    return not folders or any(
        place == folder or place.startswith(f"{folder}/") for folder in folders.split()
    )


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives to things of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def words(name: str) -> set[str]:
    """Words of an identifier, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def literals(tree: ast.Module) -> set[str]:
    """Every text that is written in a module."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def fields(tree: ast.Module) -> set[str]:
    """Names of annotated fields."""
    return {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def classes(tree: ast.Module) -> set[str]:
    """Names of the classes that a module defines."""
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def find_names(text: str, names: Iterable[str]) -> set[str]:
    """Names that stand by themselves in a text."""
    return {name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}


def find_metrics(text: str) -> set[str]:
    """Old metrics in a text, with the prefix or without."""
    return {name for name in METRICS if re.search(rf"(?<![a-z_])(adacompute_)?{name}", text)}


def find_settings(text: str) -> set[str]:
    """Old settings in a page: in backticks or set by a line of TOML."""
    names = "|".join(set(SETTINGS) - SETTINGS_WITH_OTHER_MEANINGS)
    pattern = re.compile(rf"`({names})`|^({names}) = ", re.MULTILINE)
    return {one[1] or one[2] for one in pattern.finditer(text)}


def find_keys(text: str) -> set[str]:
    """Old JSON keys in backticks of a page, those that are usual words left out."""
    return {key for key, (_, folders) in JSON_KEYS.items() if not folders and f"`{key}`" in text}


def find_identifiers(tree: ast.Module, path: Path) -> set[str]:
    """Old names and words among the identifiers of a module."""
    defined = set(identifiers(tree))
    old = set(IDENTIFIERS).union(
        *(names for folder, names in IDENTIFIERS_BY_FOLDER.items() if in_folders(path, folder))
    )
    return (defined & old) | {name for name in defined if words(name) & WORDS}


def find_literals(tree: ast.Module, path: Path) -> set[str]:
    """Old JSON keys among the texts of a module."""
    found = literals(tree)
    return {
        key for key, (_, folders) in JSON_KEYS.items() if key in found and in_folders(path, folders)
    }


def helps() -> Iterator[tuple[str, str]]:
    """Yield the name and the help of every command."""
    for name, command in list_commands().items():
        context = click.Context(command, info_name=name, max_content_width=96)
        yield name, command.get_help(context)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def check_options() -> Iterator[Found]:
    for name, text in helps():
        yield f"help:{name}", find_names(text, OPTIONS)
    for page in [*PAGES, *PROGRAMS]:
        yield relative(page), find_names(page.read_text(), OPTIONS)


def check_bundles() -> Iterator[Found]:
    for name in BUNDLE_COMMANDS:
        options = {option for one in list_commands()[name].params for option in one.opts}
        yield f"help:{name}", options & {"--policy"}


def check_settings() -> Iterator[Found]:
    config = SOURCE / "gateway" / "settings" / "config.py"
    yield relative(config), fields(ast.parse(config.read_text())) & set(SETTINGS)
    for page in [*PAGES, *DEPLOYED]:
        yield relative(page), find_settings(page.read_text())


def check_json() -> Iterator[Found]:
    for path in MODULES:
        yield relative(path), find_literals(ast.parse(path.read_text()), path)
    for page in PAGES:
        yield relative(page), find_keys(page.read_text())


def check_metrics() -> Iterator[Found]:
    for path in [SOURCE / "gateway" / "accounting" / "metrics.py", *DEPLOYED, *PAGES]:
        yield relative(path), find_metrics(path.read_text())


def check_identifiers() -> Iterator[Found]:
    for path in MODULES:
        yield relative(path), find_identifiers(ast.parse(path.read_text()), path)


def check_classes() -> Iterator[Found]:
    """Yield the classes of a module whose names another module uses too."""
    defined = {path: classes(ast.parse(path.read_text())) for path in MODULES}
    count = Counter(name for names in defined.values() for name in names)
    for path, names in defined.items():
        yield relative(path), {name for name in names if count[name] > 1}


def check_prose() -> Iterator[Found]:
    for place, text in texts():
        yield place, {one[0] for one in PROSE.finditer(text)}


def check_rates() -> Iterator[Found]:
    for place, text in texts():
        yield place, {one[0] for one in RATE.finditer(text)}


def texts() -> Iterator[tuple[str, str]]:
    """Yield everything that people read: the help, the documentation and the source."""
    for name, text in helps():
        yield f"help:{name}", text
    for path in [*PAGES, *PROGRAMS, *MODULES]:
        yield relative(path), path.read_text()


CHECKS: dict[str, Callable[[], Iterator[Found]]] = {
    "options": check_options,
    "bundles": check_bundles,
    "settings": check_settings,
    "json": check_json,
    "metrics": check_metrics,
    "identifiers": check_identifiers,
    "classes": check_classes,
    "prose": check_prose,
    "rates": check_rates,
}


def violations(name: str) -> dict[str, list[str]]:
    """Everything that a check finds and that is not excepted, by place."""
    found = {place: names - EXCEPTIONS.get(place, set()) for place, names in CHECKS[name]()}
    return {place: sorted(names) for place, names in found.items() if names}


@pytest.mark.parametrize("name", CHECKS)
def test_old_names_do_not_return(name: str) -> None:
    assert violations(name) == {}


def test_the_checks_find_what_they_look_for() -> None:
    gateway = SOURCE / "gateway" / "accounting" / "account.py"
    assert find_names("--ladder LIST  Levels.", OPTIONS) == {"--ladder"}
    assert find_names("use --api-key-env, or --discount", OPTIONS) == set()
    assert find_names("[paper|paper+]", OPTIONS) == {"paper+"}
    assert find_metrics("rate(adacompute_draws_total[5m])") == {"draws_total"}
    assert find_metrics("adacompute_samples_total, adacompute_withdraws_total") == set()
    assert find_settings("`attempts`, or\npause_s = 3\n") == {"attempts", "pause_s"}
    assert find_settings("`max_attempts`, `latency_s`; attempts fail") == set()
    assert find_keys("`left_out` and `excluded`") == {"left_out"}
    assert fields(ast.parse("class A:\n    key: str")) & set(SETTINGS) == {"key"}
    assert find_literals(ast.parse('{"decided": 1, "low": 2}'), gateway) == {"decided"}
    assert find_literals(ast.parse('{"decided": 1}'), SOURCE / "core" / "types.py") == set()
    code = ast.parse("class Purse:\n    def f(self, most_samples): held = 1; self.price = 2")
    assert find_identifiers(code, gateway) == {"Purse", "most_samples", "held"}
    assert find_identifiers(code, SOURCE / "core" / "types.py") == {"Purse", "most_samples"}
    assert set(identifiers(ast.parse("def f(lam): x = 1; y.z = 2"))) == {"f", "lam", "x", "z"}
    assert words("ModelManager") & WORDS
    assert classes(ast.parse("class A: pass\nclass B(A): pass\ndef f(): pass")) == {"A", "B"}
    assert PROSE.findall("A dearer level, as told by the tariff.") == ["dearer", "told", "tariff"]
    assert PROSE.findall("Replace nulls by pa.nulls(3).") == ["nulls"]
    assert RATE.search("two samples a question")
    assert not RATE.search("two samples per question; it samples an easy question once")
    assert len(MODULES) > 100
    assert len(list(helps())) >= 13


def test_every_exception_is_still_needed() -> None:
    for place, names in EXCEPTIONS.items():
        text = (ROOT / place).read_text()
        assert all(name in text for name in names), place
