"""Reproductions: every table and figure of the paper from any runs, in one directory.

Each of the first runs gets a directory with all exhibits: tables as CSV, Markdown and LaTeX,
figures as SVG and PDF with the data behind them as CSV, and the verdict on every claim. All runs
stand in one comparison, and are clustered together. The index is written last, and lists what was
made and what was left out, with the reason. It knows nothing of how an exhibit is computed.
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
from adacompute.paper.archetypes import compose_runs
from adacompute.paper.claims import judge_claims
from adacompute.paper.comparison import compare_policies
from adacompute.paper.exhibits import EXHIBITS, Exhibit
from adacompute.paper.figures_oracle import draw_compositions
from adacompute.paper.run_data import RunData
from adacompute.report.plot_style import save_figure
from adacompute.report.table_files import escape_markdown, save_table, to_csv
from adacompute.report.wording import format_count
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import no_progress, read_pool
from adacompute.storage.store import SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    from adacompute.report.table_files import Row

FULL_RUNS = 4
"""Runs that get every table and figure: the paper shows four."""

INDEX = "index.md"


@dataclass
class Made:
    """What was made so far, and what was not, with the reason."""

    out: Path
    paths: list[Path] = field(default_factory=list)
    excluded: list[dict[str, str]] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)

    def skip(self, run: str, what: str, error: Exception) -> None:
        """Note what a run cannot give."""
        self.excluded.append({"run": run, "what": what, "why": str(error)})

    def links(self, paths: Sequence[Path]) -> str:
        """Links to files, as the index shows them."""
        names = [path.relative_to(self.out).as_posix() for path in paths]
        return " · ".join(f"[{Path(name).suffix[1:]}](<{name}>)" for name in names)


def reproduce_runs(
    sources: Sequence[Path],
    *,
    out: Path,
    full_runs: int = FULL_RUNS,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Make every table and figure of the first runs, and the comparison of all."""
    if full_runs < 0:
        raise ConfigError(f"figures are made for 0 runs or more, not for {full_runs}")
    if full_runs:
        check_installed("matplotlib", extra="report")
    places = name_sources([place for source in sources for place in find_sources(source)])
    out.mkdir(parents=True, exist_ok=True)
    made, runs = Made(out), []
    rows: list[Row] = []
    claims: dict[str, list[Row]] = {}
    for number, (name, place) in enumerate(places.items()):
        progress(f"{name} ({number + 1} of {len(places)})")
        with open_run(place) as run:
            run_data = read_run_data(run, name)
        try:
            rows.append(compare_policies(run_data))
        except DataError as error:
            made.skip(name, "comparison", error)
            continue
        runs.append(run_data)
        if number < full_runs:
            claims[name] = _exhibit(run_data, made, progress)
    if not runs:
        raise DataError(f"no run can be compared: {made.excluded[0]['why']}")
    _across(runs, rows, claims, made, draw=full_runs > 0)
    made.paths.append(_index(made, len(places), list(claims)))
    return {
        "out": str(out),
        "index": str(out / INDEX),
        "runs": len(runs),
        "complete": list(claims),
        "excluded": made.excluded,
        "comparison": rows,
        "paths": [str(path) for path in made.paths],
    }


def find_sources(source: Path) -> list[Path]:
    """Runs and files of samples at a place: itself, or those below a directory of them."""
    if not source.is_dir() or (source / SAMPLES).exists():
        return [source]
    runs = sorted(path.parent for path in source.rglob(SAMPLES))
    files = sorted(path for path in source.rglob("*.parquet") if path.parent not in runs)
    return [*runs, *files] or [source]


def name_sources(places: Sequence[Path]) -> dict[str, Path]:
    """Name each source after its file or directory; the second of a name gets a number."""
    named: dict[str, Path] = {}
    for place in places:
        own = place.stem if place.suffix == ".parquet" else place.resolve().name
        plain = re.sub(r"[^\w.+-]+", "-", own).strip(".-") or "run"
        name, number = plain, 1
        while name in named:
            number += 1
            name = f"{plain}-{number}"
        named[name] = place
    return named


@contextmanager
def open_run(place: Path) -> Iterator[Run]:
    """Give a run, or a file of samples as one that is gone afterwards."""
    if place.is_dir() or not place.exists():
        yield Run(place)
        return
    with tempfile.TemporaryDirectory(prefix="adacompute-reproduce-") as held:
        import_samples(place, Path(held) / "run")
        yield Run(Path(held) / "run")


def read_run_data(run: Run, name: str) -> RunData:
    """Read a run as both protocols need it; costs are samples, as in the paper."""
    recorded = encode_samples(run.samples())
    draft_features = read_pool(run, draft=True).features
    known: dict[str, Any] = {"ids": recorded.id, "difficulty": recorded.difficulty}
    return RunData.from_pool(name, read_pool(run), draft_features=draft_features, **known)


def _exhibit(run_data: RunData, made: Made, progress: Callable[[str], None]) -> list[Row]:
    """Make every exhibit of a run, and judge the paper's claims by what is behind them."""
    place = made.out / run_data.name
    place.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    lines = [f"## {escape_markdown(run_data.name)}", "", "| exhibit | in the paper | files |"]
    lines.append("|---|---|---|")
    for exhibit in EXHIBITS:
        progress(f"{run_data.name}: {exhibit.name}")
        try:
            found[exhibit.name] = exhibit.compute(run_data)
        except DataError as error:
            made.skip(run_data.name, exhibit.name, error)
            continue
        paths = _save(exhibit, found[exhibit.name], place)
        made.paths += paths
        lines.append(f"| {exhibit.caption} | {exhibit.source} | {made.links(paths)} |")
    rows = judge_claims(found)
    paths = save_table(rows, place / "claims", caption=f"Claims of the paper on {run_data.name}")
    made.paths += paths
    lines.append(f"| The paper's claims with their verdicts | text | {made.links(paths)} |")
    made.sections.append("\n".join(lines))
    return rows


def _save(exhibit: Exhibit, data: Any, place: Path) -> list[Path]:  # noqa: ANN401 - as registered
    """Save what an exhibit is: a table, a figure with its data, or both."""
    paths: list[Path] = []
    if exhibit.is_table:
        caption = f"{exhibit.caption} ({exhibit.source} of the paper)"
        paths += save_table(data.rows, place / exhibit.name, caption=caption)
    else:
        behind = place / f"{exhibit.name}.csv"
        behind.write_text(to_csv(data.rows), encoding="utf-8")
        paths.append(behind)
    if exhibit.draw is not None:
        paths += save_figure(exhibit.draw(data), place / exhibit.name)
    return paths


def _across(
    runs: Sequence[RunData],
    rows: list[Row],
    claims: dict[str, list[Row]],
    made: Made,
    *,
    draw: bool,
) -> None:
    """Make what is about all runs together."""
    lines = ["## All runs", "", "| exhibit | files |", "|---|---|"]

    def note(shows: str, paths: list[Path]) -> None:
        made.paths.extend(paths)
        lines.append(f"| {shows} | {made.links(paths)} |")

    caption = "Accuracy of every run at B = 2, by the paper's protocol and held out"
    note(caption, save_table(rows, made.out / "comparison", caption=caption))
    if claims:
        first = next(iter(claims.values()))
        verdicts: list[Row] = [
            {"claim": row["claim"], "paper": row["paper"]}
            | {name: judged[i]["verdict"] for name, judged in claims.items()}
            for i, row in enumerate(first)
        ]
        caption = "The paper's claims, and the verdict of each run on them"
        note(caption, save_table(verdicts, made.out / "claims", caption=caption))
    kinds = compose_runs(runs)
    caption = "Archetypes in each run, clustered together (Figure 7, panel b)"
    paths = save_table(kinds.rows, made.out / "archetypes-by-run", caption=caption)
    if draw:
        paths += save_figure(draw_compositions(kinds), made.out / "archetypes-by-run")
    note(caption, paths)
    made.sections.insert(0, "\n".join(lines))


def _index(made: Made, runs: int, complete: Sequence[str]) -> Path:
    """Write the list of everything, last."""
    said = (
        f"{format_count(runs, 'run')}, {len(complete)} of them with every table and figure "
        "(`--full-runs N` sets how many); the others are in the comparison only. "
        "Budgets are mean samples per question."
    )
    lines = ["# The paper, on these samples", "", said, ""]
    lines += ["\n\n".join(made.sections), ""]
    if made.excluded:
        lines += ["## Left out", ""]
        lines += [
            f"- {escape_markdown(one['run'])}, {one['what']}: {escape_markdown(one['why'])}"
            for one in made.excluded
        ]
        lines.append("")
    path = made.out / INDEX
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
