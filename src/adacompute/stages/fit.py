"""Fit: the stage that goes from samples to a calibrated bundle and a verdict.

It imports, trains, calibrates and reports on one run directory. A second call skips every step that
finished with the same options on the same samples. It decides nothing itself: the verdict is that
of the calibration. Samples without grades take another path, to a vote that stops early: that of
the stage same_answer.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from adacompute.core.errors import AdaComputeError, ConfigError
from adacompute.core.progress import no_progress
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.factories import find_trainable
from adacompute.evaluation.run_results import RunResults
from adacompute.evaluation.scoring.same_answer import SHARE
from adacompute.evaluation.scoring.savings import (
    DECIDED,
    FEWER,
    INCONCLUSIVE,
    MIN_SAVING,
    NO_SAVING,
    OTHER_ARM,
    WEIGHTED,
)
from adacompute.evaluation.scoring.today import EQUAL, ONE_CALL
from adacompute.evaluation.scoring.verdict import check_questions, round_up
from adacompute.graders.grader import COMMAND
from adacompute.options.definition import list_words, select, takes
from adacompute.options.main import FitOptions
from adacompute.policies.bundles.bundle import ADVISED, load_bundle, name_verdict
from adacompute.policies.bundles.bundle_files import (
    FILE,
    RUN_DIRECTORY,
    check_replaceable,
    find_digest,
)
from adacompute.stages.calibrate import (
    CalibrateOptions,
    calibrate_run,
    check_settings,
    tolerance_of,
)
from adacompute.stages.import_samples import ImportOptions, import_samples
from adacompute.stages.inputs import (
    BEST_POLICY,
    add_level,
    check_goal,
    check_seed,
    has_native_n,
    make_pool,
    read_recorded,
    resolve_today,
    token_prices_of,
)
from adacompute.stages.report import check_extra, report_run
from adacompute.stages.report_options import FITTED
from adacompute.stages.same_answer import fit_same_answer, state_same_answer
from adacompute.stages.train import TrainOptions, train_run
from adacompute.storage.manifest import hash_path
from adacompute.storage.store import SAMPLES, Run

Result = dict[str, Any]

PAGE = "report.html"
KEPT = ("unit", "token_prices", "price_as", "model", "levels", "confidence", "seed")
"""Options of a fit that the commands of other ways to save keep."""

TRAINED, CALIBRATED = "fit-train", "fit-calibrate"
"""Manifests of the two steps that write the bundle, which is outside the run directory."""


@dataclass
class _Steps:
    """Which steps ran and which were skipped, and why a step was left out."""

    progress: Callable[[str], None]
    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, step: str, *, is_skipped: bool) -> None:
        """Note that a step ran, or that it was skipped because it had finished before."""
        (self.skipped if is_skipped else self.done).append(step)

    def describe(self) -> dict[str, list[str]]:
        """Return the steps for the result."""
        return {"steps": self.done, "steps_skipped": self.skipped, "notes": self.notes}


@takes(FitOptions)
def fit_run(
    source: str | None, options: FitOptions, *, progress: Callable[[str], None] = no_progress
) -> dict[str, Any]:
    """Fit and calibrate a policy, write its report, and return its verdict.

    ``source`` holds recorded samples or is a run, whose samples are used where they are. Instead
    of it, ``arms`` can name a file of samples for each arm. The price is for a budget or the
    accuracy of today; without grades, the bundle answers as today's samples do.
    """
    out, budget, today, grader = options.out, options.budget, options.today, options.grader
    check_goal(budget, today, unit=options.unit)
    check_settings(options.confidence, tolerance=tolerance_of(today))
    check_replaceable(out)
    steps, run = _Steps(progress), _find_run(source, options)
    check_seed(options.seed)
    training = select(
        TrainOptions,
        options,
        policy=_check_policy(options.policy or BEST_POLICY),
        levels=add_level(options.levels, today),
    )
    if source is None or Path(source) != run:
        _import(source, run, steps, options)
    if today is not None and (options.same_answer is not None or not Run(run).is_graded):
        _refuse_graded({"budget": budget, "policy": options.policy})
        share = SHARE if options.same_answer is None else options.same_answer
        result = fit_same_answer(run, today, training, share=share, confidence=options.confidence)
    else:
        result = _fit_policy(run, steps, training, options)
        result["same_answer"] = _find_same_answer(result, run, training, options)
    _add_commands(result, run, options)
    command = _next_command(result, run, out, grader)
    return {**result, **steps.describe(), "run": str(run), "next": command}


def _find_same_answer(
    result: Result, run: Path, training: TrainOptions, options: FitOptions
) -> Result | None:
    """Return what stopping early saves without a use of grades, where these prove no saving.

    It is None if it saves too little, or if today is weighted or an arm.
    """
    today, stated = options.today, result["today"]
    if today is None or stated["verdict"] not in (INCONCLUSIVE, NO_SAVING):
        return None
    if stated["votes"] != EQUAL or stated["arm"] is not None:
        return None
    costs = CostModel(training.unit, token_prices_of(training, run))
    pool = make_pool(read_recorded(Run(run)), costs=costs)
    found = state_same_answer(pool, today, training, confidence=options.confidence)
    return found if found["delivered_saving"] >= MIN_SAVING else None


def _find_run(source: str | None, options: FitOptions) -> Path:
    """Return the run directory: the source, if that is a run, else the given one or the bundle's.

    A run is read as it is: how a file would be read is refused.
    """
    if source is None or not (Path(source) / SAMPLES).is_file():
        return options.run or _locate_run(options.out)
    for name in ("run", "arms", "columns", "gold"):
        if getattr(options, name):
            raise ConfigError(f"{source} is a run, whose samples were imported: leave out {name}")
    return Path(source)


def _locate_run(out: Path) -> Path:
    """Return the run directory of a bundle: inside of it, or beside it, where it once was."""
    beside, inside = out.with_name(f"{out.name}.run"), out / RUN_DIRECTORY
    return beside if beside.is_dir() and not inside.exists() else inside


def _fit_policy(run: Path, steps: _Steps, training: TrainOptions, options: FitOptions) -> Result:
    """Train and calibrate a policy and write its report; return its verdict and the page.

    Compared with today, rounds are priced as they will be sent: in one call, if samples are today.
    """
    results, today = RunResults.of(run), options.today
    recorded = read_recorded(Run(run))
    resolve_today(today, recorded, unit=options.unit)  # before anything is trained
    check_questions(recorded.n_groups)
    sends_one = today is not None and (today.calls == ONE_CALL or has_native_n(recorded))
    training = replace(training, native_n=sends_one and options.token_prices is not None)
    trained = _train(run, steps, training, options.budget, results)
    calibration = select(CalibrateOptions, options, bundle=options.out)
    result = _calibrate(run, steps, trained, calibration, results)
    studied = {name: getattr(training, name) for name in FITTED if hasattr(training, name)}
    studied |= {"budget": result["budget"], "today": today}
    _note_options(Run(run), studied)
    page = _report(run, steps, results)
    return {**result, "report": None if page is None else str(page)}


def _refuse_graded(options: Mapping[str, object]) -> None:
    """Refuse options that need grades, where the answer is to be that of today's samples."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"{given[0]} needs grades and has no effect on how often the answer is that of today's "
            "samples: leave it out, or give samples with grades and no same-answer"
        )


def _check_policy(policy: str) -> str:
    """Return the name of a policy that can be fitted and served."""
    find_trainable(policy)
    return policy


def _import(source: str | None, run: Path, steps: _Steps, options: FitOptions) -> None:
    steps.progress("import")
    before, path = Run(run).manifest("import"), None if source is None else Path(source)
    own = select(ImportOptions, options)
    import_samples(path, run, options=own, allow_ungraded=options.today is not None)
    steps.note("import", is_skipped=before is not None and before == Run(run).manifest("import"))


def _train(
    run: Path, steps: _Steps, options: TrainOptions, budget: float | None, results: RunResults
) -> str:
    """Train the bundle unless it is there already; return the hash of the trained bundle."""
    store, out = Run(run), options.out
    inputs, prices = store.hashes([SAMPLES]), options.token_prices
    hashed = None if prices is None else hash_path(prices)
    arguments = {**vars(options), "token_prices": hashed, "out": str(out.resolve())}
    finished = store.find_finished(TRAINED, arguments, inputs)
    if finished and _holds(out, store, str(finished.result["bundle_hash"])):
        steps.note("train", is_skipped=True)
        return str(finished.result["bundle_hash"])
    steps.progress(f"train {options.policy}")
    lowest = math.inf if budget is None else budget
    known: dict[str, Any] = {"results": results, "progress": steps.progress}
    digest = train_run(run, options=options, min_budget=lowest, **known)
    result = {"bundle_hash": digest}
    store.finish(TRAINED, arguments=arguments, inputs=inputs, outputs={}, result=result)
    steps.note("train", is_skipped=False)
    return digest


def _holds(out: Path, store: Run, trained: str) -> bool:
    """Whether a bundle is as it was trained, or as it was calibrated after that."""
    calibrated = store.manifest(CALIBRATED)
    known = [trained]
    if calibrated and calibrated.arguments["trained"] == trained:
        known.append(calibrated.result["bundle_hash"])
    return (out / FILE).is_file() and find_digest(out) in known


def _calibrate(
    run: Path, steps: _Steps, trained: str, options: CalibrateOptions, results: RunResults
) -> dict[str, Any]:
    store, out = Run(run), options.bundle
    arguments = {**asdict(options), "bundle": str(out.resolve()), "trained": trained}
    inputs = store.hashes([SAMPLES])
    finished = store.find_finished(CALIBRATED, arguments, inputs)
    if finished and find_digest(out) == finished.result["bundle_hash"]:
        steps.note("calibrate", is_skipped=True)
        return {**finished.result["calibration"], "bundle_digest": find_digest(out)}
    steps.progress("calibrate")
    result = calibrate_run(run, options=options, results=results, progress=steps.progress)
    kept = {"calibration": result, "bundle_hash": find_digest(out)}
    store.finish(CALIBRATED, arguments=arguments, inputs=inputs, outputs={}, result=kept)
    steps.note("calibrate", is_skipped=False)
    return result


def _report(run: Path, steps: _Steps, results: RunResults) -> Path | None:
    """Write the report on the fitted policy, or note why there is none."""
    page = run / PAGE
    before = Run(run).manifest("report")
    try:
        check_extra()
        steps.progress("report")
        report_run(run, out=page, results=results, progress=steps.progress)
    except AdaComputeError as error:
        steps.notes.append(f"No report: {error}.")
        return None
    steps.note("report", is_skipped=before is not None and before == Run(run).manifest("report"))
    return page


def _note_options(store: Run, options: dict[str, Any]) -> None:
    """Note which policy the run has now, for later reports."""
    inputs, prices = store.hashes([SAMPLES]), options["token_prices"]
    today = options["today"]
    found = options | {
        "token_prices": prices and prices.resolve(),
        "today": today and asdict(today),
    }
    store.finish("fit", arguments=found, inputs=inputs, outputs={}, result={})


def _add_commands(result: Result, run: Path, options: FitOptions) -> None:
    """Add to each way to save the command that builds it; the policy is built already.

    Each builds a bundle of its own, from the samples of the run.
    """
    today, same_answer = result["today"] or {}, result.get("same_answer")
    known = list_words(options, KEPT)

    def build(name: str, *words: str) -> str:
        out = options.out.with_name(f"{options.out.name}-{name}")
        return shlex.join(["adacompute", "fit", str(run), "--out", str(out), *known, *words])

    mixtures = {FEWER: ("fewer", "evidence=votes"), WEIGHTED: ("mixture",), OTHER_ARM: ("mixture",)}
    for way in today.get("ways", ()):
        way["command"] = None
        if way["way"] in mixtures:
            name, *settings = mixtures[way["way"]]
            settings = [word for one in ("policy=mixture", *settings) for word in ("--config", one)]
            way["command"] = build(name, *settings, "--budget", f"{round_up(way['cost']):g}")
        elif way["way"] == DECIDED:
            size = str(today["samples"])
            way["command"] = build("decided", "--today", size, "--config", "same-answer=1")
    if same_answer is not None:
        share = f"same-answer={same_answer['same_answer_wanted']:g}"
        words = ("--today", str(same_answer["samples"]), "--config", share)
        same_answer["command"] = build("same-answer", *words)


def _next_command(result: dict[str, Any], run: Path, out: Path, grader: str | None) -> str:
    """Return the command that serves a policy with a gain, or that scores all policies.

    Where another way saves as much, it is the command that builds it.
    """
    if result.get("same_answer") is not None:
        return str(result["same_answer"]["command"])
    for way in (result["today"] or {}).get("ways", ()):
        if way["way"] == result["today"]["advice"] and way["command"]:
            return str(way["command"])
    if name_verdict(result) not in ADVISED:
        return shlex.join(["adacompute", "evaluate", str(run)])
    bundle = load_bundle(out)
    words = ["adacompute", "serve", "--bundle", str(out), "--base-url", "URL"]
    words += ["--budget", f"{result['budget']:g}"]
    if bundle.model is None:
        words += ["--model", "MODEL"]
    if bundle.grader in (None, COMMAND):
        words += ["--grader", grader or "GRADER"]
    return shlex.join(words)
