"""Runs: every table and figure of the paper, made from any runs.

Each of the first runs gets a directory with all exhibits: tables as CSV, Markdown and LaTeX,
figures as SVG and PDF with their data as CSV, and the verdict on every claim. What the paper makes
of several runs is made of the first runs together. All runs are compared and clustered together.
The index is written last. It lists what was made, and what was excluded
with the reason. It does not know how an exhibit is computed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError, DataError, check_installed
from adacompute.core.progress import no_progress
from adacompute.datasets.example import EXAMPLE
from adacompute.datasets.sources import resolve_source
from adacompute.report.wording import format_count
from adacompute.stages.inputs import read_pool
from adacompute.stages.research.import_samples import import_samples
from adacompute.storage.store import SAMPLES, Run
from reproduction.archetypes import compose_runs
from reproduction.claim_measures import measure_claims
from reproduction.claims import compare_verdicts, judge_claims, judge_shared_claims
from reproduction.claims_shared import RunsData
from reproduction.comparison import compare_policies
from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.figures_shared import draw_compositions
from reproduction.panels import save_figure
from reproduction.run_data import RunData
from reproduction.shared_exhibits import SHARED_EXHIBITS, CompleteRun, SharedExhibit
from reproduction.table_files import escape_markdown, save_table, to_csv

if TYPE_CHECKING:
    from reproduction.table_files import Row

FULL_RUNS = 4
"""Number of runs that get every table and figure, as many as in the paper."""

INDEX = "index.md"


@dataclass
class Output:
    """The files that were written so far, and what was excluded with the reason."""

    directory: Path
    paths: list[Path] = field(default_factory=list)
    excluded: list[dict[str, str]] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)

    def skip(self, run: str, exhibit: str, error: Exception) -> None:
        """Note what cannot be made of a run."""
        self.excluded.append({"run": run, "exhibit": exhibit, "reason": str(error)})

    def links(self, paths: Sequence[Path]) -> str:
        """Return links to files in Markdown."""
        names = [path.relative_to(self.directory).as_posix() for path in paths]
        return " · ".join(f"[{Path(name).suffix[1:]}](<{name}>)" for name in names)


def reproduce_runs(
    sources: Sequence[Path],
    *,
    out: Path,
    full_runs: int = FULL_RUNS,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Make every table and figure of the first runs, and compare all runs."""
    if full_runs < 0:
        raise ConfigError(f"full-runs must be at least 0, got {full_runs}")
    if full_runs:
        check_installed("matplotlib", extra="report")
    named = name_sources([path for source in sources for path in find_sources(source)])
    out.mkdir(parents=True, exist_ok=True)
    output, runs = Output(out), []
    rows: list[Row] = []
    complete: list[CompleteRun] = []
    for number, (name, path) in enumerate(named.items()):
        progress(f"{name} ({number + 1} of {len(named)})")
        with open_run(path) as run:
            run_data = read_run_data(run, name)
        try:
            rows.append(compare_policies(run_data))
        except DataError as error:
            output.skip(name, "comparison", error)
            continue
        runs.append(run_data)
        if number < full_runs:
            complete.append(_make_exhibits(run_data, output, progress))
    if not runs:
        raise DataError(f"no run can be compared: {output.excluded[0]['reason']}")
    progress("all runs")
    _make_shared(runs, rows, complete, output)
    names = [one.run.name for one in complete]
    output.paths.append(_write_index(output, len(named), names))
    return {
        "out": str(out),
        "index": str(out / INDEX),
        "runs": len(runs),
        "complete": names,
        "excluded": output.excluded,
        "comparison": rows,
        "paths": [str(path) for path in output.paths],
    }


def find_sources(source: Path) -> list[Path]:
    """Return the runs and sample files at a path: itself, or those below a directory.

    ``example`` is the file of samples that ships with the package.
    """
    if str(source) == EXAMPLE:
        source = resolve_source(source)
    if not source.is_dir() or (source / SAMPLES).exists():
        return [source]
    runs = sorted(path.parent for path in source.rglob(SAMPLES))
    files = sorted(path for path in source.rglob("*.parquet") if path.parent not in runs)
    return [*runs, *files] or [source]


def name_sources(sources: Sequence[Path]) -> dict[str, Path]:
    """Name each source after its file or directory; repeated names get a number."""
    named: dict[str, Path] = {}
    for path in sources:
        own = path.stem if path.suffix == ".parquet" else path.resolve().name
        plain = re.sub(r"[^\w.+-]+", "-", own).strip(".-") or "run"
        name, number = plain, 1
        while name in named:
            number += 1
            name = f"{plain}-{number}"
        named[name] = path
    return named


@contextmanager
def open_run(path: Path) -> Iterator[Run]:
    """Yield a run; a sample file is imported into a temporary one."""
    if path.is_dir() or not path.exists():
        yield Run(path)
        return
    with tempfile.TemporaryDirectory(prefix="adacompute-reproduce-") as directory:
        import_samples(path, Path(directory) / "run", allow_inconsistent_grades=True)
        yield Run(Path(directory) / "run")


def read_run_data(run: Run, name: str) -> RunData:
    """Read a run for both protocols; costs are samples, as in the paper."""
    recorded = run.encoded_samples()
    known: dict[str, Any] = {"ids": recorded.id, "difficulty": recorded.difficulty}
    return RunData.from_pool(name, read_pool(run, draft=True), **known)


def _make_exhibits(
    run_data: RunData, output: Output, progress: Callable[[str], None]
) -> CompleteRun:
    """Make every exhibit of a run, and judge the paper's claims by their data."""
    path = output.directory / run_data.name
    path.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    lines = [f"## {escape_markdown(run_data.name)}", ""]
    if run_data.pool.draft is not None:
        lines += [f"The feature `entropy_estimate` is {run_data.pool.draft.describe()}.", ""]
    lines += ["| exhibit | in the paper | files |", "|---|---|---|"]
    for exhibit in EXHIBITS:
        progress(f"{run_data.name}: {exhibit.name}")
        try:
            found[exhibit.name] = exhibit.compute(run_data)
        except DataError as error:
            output.skip(run_data.name, exhibit.name, error)
            continue
        paths = _save(exhibit, found[exhibit.name], path)
        output.paths += paths
        lines.append(f"| {exhibit.caption} | {exhibit.source} | {output.links(paths)} |")
    try:
        found["measures"] = measure_claims(run_data)
    except DataError as error:
        output.skip(run_data.name, "claims", error)
    rows = judge_claims(found)
    paths = save_table(rows, path / "claims", caption=f"Claims of the paper on {run_data.name}")
    output.paths += paths
    lines.append(f"| The paper's claims with their verdicts | text | {output.links(paths)} |")
    output.sections.append("\n".join(lines))
    return CompleteRun(run_data, found, rows)


def _save(exhibit: Exhibit | SharedExhibit, data: Any, path: Path) -> list[Path]:  # noqa: ANN401 - as registered
    """Save an exhibit: a table, a figure with its data, or both."""
    paths: list[Path] = []
    if exhibit.is_table:
        caption = f"{exhibit.caption} ({exhibit.source} of the paper)"
        paths += save_table(data.rows, path / exhibit.name, caption=caption)
    else:
        table = path / f"{exhibit.name}.csv"
        table.write_text(to_csv(data.rows), encoding="utf-8")
        paths.append(table)
    if exhibit.draw is not None:
        paths += save_figure(exhibit.draw(data), path / exhibit.name)
    return paths


def _make_shared(
    runs: Sequence[RunData], rows: list[Row], complete: list[CompleteRun], output: Output
) -> None:
    """Make the tables and figures of all runs together."""
    lines = ["## All runs", "", "| exhibit | in the paper | files |", "|---|---|---|"]

    def note(caption: str, source: str, paths: list[Path]) -> None:
        output.paths.extend(paths)
        lines.append(f"| {caption} | {source} | {output.links(paths)} |")

    caption = "Accuracy of every run at B = 2, by the paper's protocol and held out"
    note(caption, "–", save_table(rows, output.directory / "comparison", caption=caption))
    kinds = compose_runs(runs)
    for name, caption, kind_rows in (
        ("archetype-centres", "Mean curves of the archetypes of all runs", kinds.centre_rows),
        ("archetypes-by-run", "Archetypes in each run, clustered together", kinds.rows),
    ):
        paths = save_table(kind_rows, output.directory / name, caption=caption)
        if name == "archetypes-by-run" and complete:
            paths += save_figure(draw_compositions(kinds), output.directory / name)
        note(caption, "Figure 7", paths)
    shared = _make_shared_exhibits(complete, output, note)
    if complete:
        by_run = {one.run.name: one.exhibits for one in complete}
        own = compose_runs([one.run for one in complete])
        judged = judge_shared_claims(RunsData(by_run, shared.get("ablation"), own))
        rows_of = {one.run.name: one.claims for one in complete}
        caption = "The paper's claims, and the verdict of each run and of all runs on them"
        verdicts = compare_verdicts(rows_of, judged)
        note(caption, "text", save_table(verdicts, output.directory / "claims", caption=caption))
    if len(complete) > 1:
        caption = "The paper's claims about several runs"
        note(
            caption, "text", save_table(judged, output.directory / "shared-claims", caption=caption)
        )
    output.sections.insert(0, "\n".join(lines))


def _make_shared_exhibits(
    complete: list[CompleteRun], output: Output, note: Callable[[str, str, list[Path]], None]
) -> dict[str, Any]:
    """Make the exhibits of several runs together; return their data by name."""
    found: dict[str, Any] = {}
    for exhibit in SHARED_EXHIBITS if len(complete) > 1 else ():
        try:
            found[exhibit.name] = exhibit.compute(complete)
        except DataError as error:
            output.skip("all runs", exhibit.name, error)
            continue
        paths = _save(exhibit, found[exhibit.name], output.directory)
        note(exhibit.caption, exhibit.source, paths)
    return found


def _write_index(output: Output, runs: int, complete: Sequence[str]) -> Path:
    """Write the list of everything that was made."""
    summary = (
        f"{format_count(runs, 'run')}, {len(complete)} of them with every table and figure "
        "(`--full-runs N` sets how many); the others are in the comparison only. "
        "Budgets are mean samples per question."
    )
    lines = ["# The paper, on these samples", "", summary, ""]
    lines += ["\n\n".join(output.sections), ""]
    if output.excluded:
        lines += ["## Left out", ""]
        lines += [
            f"- {escape_markdown(one['run'])}, {one['exhibit']}: {escape_markdown(one['reason'])}"
            for one in output.excluded
        ]
        lines.append("")
    path = output.directory / INDEX
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
