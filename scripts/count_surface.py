"""Count what users have to know: commands, options, settings and public names.

Run `python -m scripts.count_surface`; `tests/test_surface.py` bounds the numbers. A setting is a
key of a TOML file that no option sets; a name that several tables have counts once. Tables are not
counted, their keys are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields

import click

import adacompute
from adacompute.cli.main import list_commands
from adacompute.cli.options import Setting
from adacompute.gateway.accounting.caps import CapConfig
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import ModelConfig, UpstreamConfig

GATEWAY = (Config, ModelConfig, UpstreamConfig, CapConfig)
TABLES = {"upstreams", "models", "caps"}
"""Tables of a gateway whose keys are those of another class."""


def count_options() -> dict[str, int]:
    """Return the number of options of each command, without ``--help``."""
    return {name: len(_options(command)) for name, command in list_commands().items()}


def list_settings() -> dict[str, set[str]]:
    """Return the settings of the commands and of the gateway."""
    commands = list_commands()
    known = {one.name for command in commands.values() for one in _options(command)}
    found: dict[str, set[str]] = {"commands": set(), "gateway": set()}
    for command in commands.values():
        found["commands"] |= {str(one.name) for one in command.params if isinstance(one, Setting)}
    found["gateway"] = {
        field.name
        for kind in GATEWAY
        for field in fields(kind)
        if kind is not Config or field.name not in TABLES
    }
    return {group: names - known for group, names in found.items()}


def _options(command: click.Command) -> list[click.Parameter]:
    every = [one for one in command.params if isinstance(one, click.Option)]
    return [one for one in every if not isinstance(one, Setting)]


def describe(options: Mapping[str, int], settings: Mapping[str, set[str]]) -> str:
    """Return the numbers as text."""
    top = dict.fromkeys(name.partition(" ")[0] for name in options)
    lines = [f"{len(top)} commands: {', '.join(top)}"]
    lines += [f"{count:4} options of {name}" for name, count in options.items()]
    lines.append(f"{sum(options.values()):4} options in all")
    for group, names in settings.items():
        lines.append(f"{len(names):4} settings of {group}: {', '.join(sorted(names))}")
    lines.append(f"{len(set().union(*settings.values())):4} settings in all")
    lines.append(f"{len(adacompute.__all__):4} public names")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(describe(count_options(), list_settings()) + "\n")
