"""The command line of a class of options has the names, types and defaults of its fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from adacompute.cli.definition import command
from adacompute.options.definition import ABOUT
from adacompute.options.main import (
    CollectOptions,
    EvaluateOptions,
    FitOptions,
    ReportOptions,
    SolveOptions,
)
from adacompute.stages.solve import solve_source


def invoke(kind: type[Any], words: Sequence[str]) -> tuple[Any, Result]:
    seen = []

    @command("try", kind)
    def run(*, options: Any, as_json: bool) -> None:
        assert not as_json
        seen.append(options)

    result = CliRunner().invoke(run, list(words))
    return (seen[0] if seen else None), result


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--levels", "1,3"], {"levels": (1, 3)}),
        (["--unit", "tokens"], {"unit": "tokens"}),
        (["--token-prices", "p.toml"], {"token_prices": Path("p.toml")}),
        (
            ["--config", "price-as=a=b", "--config", "price-as=c=d"],
            {"price_as": {"a": "b", "c": "d"}},
        ),
    ],
)
def test_options_are_read_by_the_types_of_fields(words: list[str], changed: dict[str, Any]) -> None:
    found, _ = invoke(SolveOptions, ["--budget", "2", *words])
    assert asdict(found) == asdict(SolveOptions(budget=2.0, price_as={}, columns=None)) | changed


def test_a_group_is_none_unless_one_of_its_options_is_given() -> None:
    assert invoke(ReportOptions, ["--out", "p"])[0].today is None
    found, _ = invoke(ReportOptions, ["--out", "p", "--today", "5", "--config", "tolerance=0.1"])
    assert (found.today.today, found.today.tolerance, found.today.calls) == ("5", 0.1, None)


def test_options_of_a_group_say_what_they_need() -> None:
    _, result = invoke(ReportOptions, ["--out", "p", "--config", "tolerance=0.1"])
    assert (result.exit_code, "tolerance needs --today, what you run now" in result.output) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    "kind",
    [
        *(CollectOptions, EvaluateOptions, FitOptions, ReportOptions, SolveOptions),
    ],
)
def test_help_names_every_option_and_setting_once(kind: type[Any]) -> None:
    result = CliRunner().invoke(command("try", kind)(lambda **_: None), ["--help"])
    assert str(kind.__doc__).splitlines()[0] in result.output
    for one in fields(kind):
        if ABOUT in one.metadata:
            about = one.metadata[ABOUT]
            key = (about.name or one.name).replace("_", "-")
            if one.name not in getattr(kind, "OPTIONS", (one.name,)):
                settings = result.output.partition("Settings for --config: ")[2].replace("\n", " ")
                assert settings.rstrip(". ").replace("- ", "-").split(", ").count(key) == 1
                continue
            name = f"--{key} "
            listed = result.output.partition("Options:\n")[2]
            assert listed.count(f"  {name}") == 1, name
            is_required = "[required]" in listed.partition(f"  {name}")[2].partition("  --")[0]
            assert is_required == (one.default is MISSING), name


def test_functions_take_options_as_an_object_or_one_by_one(tmp_path: Path) -> None:
    for known in ({"options": SolveOptions(budget=0.0)}, {"budget": 0.0}):
        with pytest.raises(Exception, match="no file"):
            solve_source(tmp_path / "none", **known)
    with pytest.raises(TypeError, match="budget"):
        solve_source(tmp_path)
    with pytest.raises(TypeError, match="colour"):
        solve_source(tmp_path, budget=1.0, colour="red")
