"""Runs: every table and figure of the paper, made from any runs.

Each of the first runs gets a directory with all exhibits: tables as CSV and Markdown,
figures as SVG and PDF with their data as CSV, and the verdict on every claim. All runs are
compared. The index is written last. It lists what was made, and what was excluded with the reason.
It does not know how an exhibit is computed.
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
from adacompute.datasets.sources import read_source, resolve_source
from adacompute.report.wording import format_count
from adacompute.stages.inputs import make_pool
from adacompute.storage.store import SAMPLES, Run
from reproduction.claims import compare_verdicts, judge_claims
from reproduction.comparison import compare_policies
from reproduction.drafts import read_drafts
from reproduction.exhibits import EXHIBITS, Exhibit
from reproduction.panels import save_figure
from reproduction.run_data import RunData
from reproduction.table_files import escape_markdown, save_table, to_csv

if TYPE_CHECKING:
    import pyarrow as pa

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
    output = Output(out)
    rows: list[Row] = []
    complete: dict[str, list[Row]] = {}
    for number, (name, path) in enumerate(named.items()):
        progress(f"{name} ({number + 1} of {len(named)})")
        with open_run(path) as run:
            run_data = read_run_data(run, name)
        try:
            rows.append(compare_policies(run_data))
        except DataError as error:
            output.skip(name, "comparison", error)
            continue
        if number < full_runs:
            complete[name] = _make_exhibits(run_data, output, progress)
    if not rows:
        raise DataError(f"no run can be compared: {output.excluded[0]['reason']}")
    progress("all runs")
    _make_shared(rows, complete, output)
    names = list(complete)
    output.paths.append(_write_index(output, len(named), names))
    return {
        "out": str(out),
        "index": str(out / INDEX),
        "runs": len(rows),
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


def write_run(path: Path, samples: pa.Table) -> Run:
    """Write samples as a run, also where equal answers have different grades."""
    run = Run(path)
    outputs = {SAMPLES: samples}
    run.finish("import", arguments={}, inputs={}, outputs=outputs, result={})
    return run


@contextmanager
def open_run(path: Path) -> Iterator[Run]:
    """Yield a run; a sample file is imported into a temporary one."""
    if path.is_dir() or not path.exists():
        yield Run(path)
        return
    with tempfile.TemporaryDirectory(prefix="adacompute-reproduce-") as directory:
        yield write_run(Path(directory) / "run", read_source(path))


def read_run_data(run: Run, name: str) -> RunData:
    """Read a run for both protocols; costs are samples, as in the paper."""
    recorded = run.encoded_samples()
    pool = make_pool(recorded)
    known: dict[str, Any] = {"ids": recorded.id, "difficulty": recorded.difficulty}
    return RunData.from_pool(name, pool, drafts=read_drafts(recorded, pool), **known)


def _make_exhibits(run_data: RunData, output: Output, progress: Callable[[str], None]) -> list[Row]:
    """Make every exhibit of a run, and return the verdicts on the paper's claims."""
    path = output.directory / run_data.name
    path.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    lines = [f"## {escape_markdown(run_data.name)}", ""]
    if run_data.drafts is not None:
        lines += [f"The feature `entropy_estimate` is {run_data.drafts.description}.", ""]
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
    rows = judge_claims(found)
    paths = save_table(rows, path / "claims")
    output.paths += paths
    lines.append(f"| The paper's claims with their verdicts | text | {output.links(paths)} |")
    output.sections.append("\n".join(lines))
    return rows


def _save(exhibit: Exhibit, data: Any, path: Path) -> list[Path]:  # noqa: ANN401 - as registered
    """Save an exhibit: a table, a figure with its data, or both."""
    paths: list[Path] = []
    if exhibit.is_table:
        paths += save_table(data.rows, path / exhibit.name)
    else:
        table = path / f"{exhibit.name}.csv"
        table.write_text(to_csv(data.rows), encoding="utf-8")
        paths.append(table)
    if exhibit.draw is not None:
        paths += save_figure(exhibit.draw(data), path / exhibit.name)
    return paths


def _make_shared(rows: list[Row], complete: dict[str, list[Row]], output: Output) -> None:
    """Make the tables that compare the runs."""
    lines = ["## All runs", "", "| exhibit | in the paper | files |", "|---|---|---|"]

    def note(caption: str, source: str, paths: list[Path]) -> None:
        output.paths.extend(paths)
        lines.append(f"| {caption} | {source} | {output.links(paths)} |")

    caption = "Accuracy of every run at B = 2, by the paper's protocol and held out"
    note(caption, "–", save_table(rows, output.directory / "comparison"))
    if complete:
        caption = "The paper's claims, and the verdict of each run on them"
        paths = save_table(compare_verdicts(complete), output.directory / "claims")
        note(caption, "text", paths)
    output.sections.insert(0, "\n".join(lines))


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
