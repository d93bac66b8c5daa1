"""Spending commands: sum what a gateway's calls cost, and list its caps.

Each command parses its options, calls one stage and prints the result. It computes nothing itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adacompute.cli.definition import command
from adacompute.cli.options import RUN
from adacompute.cli.output import (
    NOTHING,
    format_amount,
    format_value,
    print_rows,
    print_text,
    print_values,
    show,
)
from adacompute.core.errors import needs_extra
from adacompute.options.main import CapsOptions, SpendOptions

Result = dict[str, Any]


@command(
    "spend", SpendOptions, click.argument("directory", metavar="[DIR]", type=RUN, required=False)
)
def spend(*, directory: Path | None, options: SpendOptions, as_json: bool) -> None:
    """Sum what was spent."""
    del options
    from adacompute.stages.spend import sum_spend

    show(sum_spend(directory), _print_spend, as_json=as_json)


@command("caps", CapsOptions, click.argument("path", metavar="CONFIG", type=RUN))
def caps(*, path: Path, options: CapsOptions, as_json: bool) -> None:
    """List caps."""
    with needs_extra("serve"):
        from adacompute.stages.caps import list_caps

    show(list_caps(path, options=options), _print_caps, as_json=as_json)


def _print_spend(result: Result) -> None:
    """Print what was spent, one row per model and purpose."""
    rows = [
        {
            "Model": row["upstream_model"],
            "Purpose": row["purpose"],
            "Calls": row["calls"],
            "Estimated": row["estimated_calls"],
            "Prompt tokens": row["prompt_tokens"],
            "Completion tokens": row["completion_tokens"],
            "Cost": NOTHING if row["unpriced_calls"] == row["calls"] else row["cost"],
        }
        for row in result["spend"]
    ]
    print_rows(f"Spend in {format_value(result['directories'])}", rows)
    for row in result["savings"]:
        _print_live_saving(row)
    if any(result["lost"].values()):
        decisions = format_amount(result["lost"]["decisions"], "decision")
        call_rows = format_amount(result["lost"]["call_rows"], "row")
        print_text(
            f"Lost, because a disk was full or could not be written: {decisions}, and {call_rows} "
            "of this account, two for each call.",
            "yellow",
        )


def _print_live_saving(row: Result) -> None:
    """Print what the policy of a model saves, compared with requests that are answered as today."""
    names = {"samples_used": "Samples", "cost": "Cost", "latency_s": "Seconds, 95th percentile"}
    rows = [
        {
            "": title,
            "Today": _with_ends(row, f"today_{name}"),
            "Policy": _with_ends(row, f"policy_{name}"),
            "Saved": _with_ends(row, f"saving_{name}", 100) if f"saving_{name}" in row else NOTHING,
        }
        for name, title in names.items()
        if f"today_{name}" in row and f"policy_{name}" in row
    ]
    requests = (
        f"{row['today_requests']:,} requests as today, {row['policy_requests']:,} by the policy"
    )
    print_rows(f"{row['model']}: {requests}; 95 % intervals, for any number of looks", rows)


def _with_ends(row: Result, name: str, scale: float = 1.0) -> str:
    """Return a value with the ends of its interval; in per cent with a scale of 100."""
    ends = (row[f"{name}_low"], row[f"{name}_high"])
    shown = " to ".join(NOTHING if end is None else f"{scale * end:.3g}" for end in ends)
    return f"{scale * row[name]:.3g}{' %' if scale != 1 else ''} ({shown})"


def _print_caps(result: Result) -> None:
    """Print the state of the store, and the accounts of caps, one row per account."""
    replicas, status = result["replicas"], str(result["replicas"]["status"])
    if names := ", ".join(name[:8] for name in replicas["waiting_for"]):
        status += f": waits for {names}"
    print_values(
        "Store of accounts",
        {
            "Store": result["store"],
            "Running replicas": replicas["running"],
            "Status": status,
        },
    )
    if not result["accounts"]:
        return
    rows = [
        {
            "Account": row["name"],
            "Limit": row["limit"],
            "Spent": row["spent"],
            "Held": row["held"],
            "Replicas": row["replicas"],
        }
        for row in result["accounts"]
    ]
    print_rows("Accounts", rows)
