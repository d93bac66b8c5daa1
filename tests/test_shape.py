"""The code keeps its shape: short files and functions, documented modules, no hidden state.

A rule is one test, which lists every offence.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("src/adacompute/**", "reproduction")
    for path in sorted(ROOT.glob(f"{folder}/*.py"))
}
TREES = {name: ast.parse(text) for name, text in MODULES.items()}
FILE_LINES, FUNCTION_LINES, MAX_PARAMETERS = 400, 50, 6
MANY_PARAMETERS = {
    "src/adacompute/api/calibration.py: calibrate",
    "src/adacompute/api/samples.py: read_samples",
    "src/adacompute/api/scores.py: evaluate",
    "src/adacompute/sampling/sampler.py: Sampler.__init__",
    "src/adacompute/sampling/session.py: Session.__init__",
}
"""Public functions, which are called with a few of their keyword arguments."""

NO_NOUNS = {"utils", "util", "helpers", "helper", "common", "base", "manager"}


def test_files_and_functions_are_short() -> None:
    offences = [name for name, text in MODULES.items() if len(text.splitlines()) >= FILE_LINES]
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    offences.append(f"{name}: {node.name} has {lines} lines")
    assert offences == []


def _list_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return the functions of the package, each with its module and its name."""
    for name, tree in TREES.items():
        if name.startswith("reproduction"):
            continue
        for outer in ast.walk(tree):
            prefix = f"{outer.name}." if isinstance(outer, ast.ClassDef) else ""
            for node in ast.iter_child_nodes(outer):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{name}: {prefix}{node.name}", node


def _count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [one.arg for one in (given.vararg, given.kwarg) if one is not None]
    return len([name for name in names if name not in {"self", "cls"}])


def test_functions_take_few_parameters() -> None:
    many = {name for name, one in _list_functions() if _count_parameters(one) > MAX_PARAMETERS}
    assert many == MANY_PARAMETERS


def test_modules_are_nouns_whose_docstring_begins_with_a_sentence() -> None:
    offences = [
        name
        for name, tree in TREES.items()
        if Path(name).stem in NO_NOUNS
        or not (ast.get_docstring(tree) or "").partition("\n")[0].endswith(".")
    ]
    assert offences == []


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    count = Counter(
        node.name for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    assert [name for name, n in count.items() if n > 1] == []


def test_there_is_no_global_state() -> None:
    offences = [
        f"{name}, line {node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert offences == []


def is_blind(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches every exception, and does not raise it again."""
    kind = ast.unparse(handler.type) if handler.type else ""
    last = handler.body[-1]
    is_raised_again = isinstance(last, ast.Raise) and last.exc is None
    is_wide = re.search(r"\bException\b|BaseException", kind) is not None
    return kind == "" or (is_wide and not is_raised_again)


def test_no_exception_is_caught_blindly_unless_it_is_raised_again() -> None:
    offences = [
        f"{name}, line {node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and is_blind(node)
    ]
    assert offences == []


POLICY_MEMBERS = {
    node.name
    for one in TREES["src/adacompute/policies/policy.py"].body
    if isinstance(one, ast.ClassDef) and one.name == "Policy"
    for node in one.body
    if isinstance(node, ast.FunctionDef)
} | {"levels", "arms", "confidence", "pooled", "schedule", "sample_cost"}
POLICY_DOORS = {
    "src/adacompute/policies/bundles/serialization.py",
    "src/adacompute/api/estimator.py",
}
"""Modules that may ask whether something is a policy: stored ones, and those of a user."""


def test_nothing_asks_for_the_type_of_a_policy() -> None:
    """A policy says itself what others need to know of it."""
    classes = {
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) == "Policy" for base in node.bases)
    }
    assert {"RulePolicy", "SequentialPolicy", "ArmMixture"} <= classes
    offences = [
        f"{name}, line {node.lineno}: {ast.unparse(node)}"
        for name, tree in TREES.items()
        if name not in POLICY_DOORS
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _asks_for_a_type(node, {*classes, "Policy"})
    ]
    assert offences == []


def _asks_for_a_type(call: ast.Call, classes: set[str]) -> bool:
    """Whether a call asks if something is one of these classes, or has an attribute of a policy."""
    name, arguments = ast.unparse(call.func), [ast.unparse(one) for one in call.args]
    if name == "isinstance":
        return bool(classes & set(re.findall(r"\w+", arguments[1])))
    return name in ("hasattr", "getattr") and arguments[1].strip("'") in POLICY_MEMBERS


PACKAGE = ROOT / "src" / "adacompute"
SMALL_LINES, MAX_MODULES = 60, 16
SMALL = {
    "adacompute.graders.exact",  # one grader per module
    "adacompute.testing.lockstep",  # tests use it too
}
"""Modules of fewer lines that only one other module uses, and why they are modules of their own."""


def _imports(tree: ast.Module) -> set[str]:
    """Return the names of modules, and of what is in them, that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def test_small_modules_that_one_module_uses_are_part_of_it() -> None:
    imports = {name: _imports(tree) for name, tree in TREES.items()}
    small = set()
    for name, text in MODULES.items():
        module = name.removeprefix("src/").removesuffix(".py").replace("/", ".")
        is_module = name.startswith("src/") and not module.endswith("__init__")
        if is_module and len(text.splitlines()) < SMALL_LINES:
            users = [one for one, found in imports.items() if module in found]
            small |= {module} if len(users) == 1 else set()
    assert small == SMALL


def test_no_folder_has_more_modules_than_one_can_see() -> None:
    folders = [path.parent for path in PACKAGE.rglob("__init__.py")]
    counts = {one.relative_to(PACKAGE): len(list(one.glob("*.py"))) - 1 for one in folders}
    assert {folder: n for folder, n in counts.items() if n > MAX_MODULES} == {}
