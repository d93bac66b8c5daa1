"""Samples: recorded and graded samples, read from files and from tables in memory.

A source is a path, the name of the set that ships (``example``), a run directory, or a table of
another library: anything with the Arrow C stream interface (pandas, polars, pyarrow, DuckDB) and
datasets of Hugging Face. None of these libraries is a dependency. It knows nothing of policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adacompute.api.tables import Tabular
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import Float32Array, IntArray, KeyArray, UtilityTable
from adacompute.datasets.example import EXAMPLE, find_example, find_grader, locate_bundle
from adacompute.datasets.sources import resolve_source
from adacompute.evaluation.costs import COUNT_SAMPLES, CostModel, select_token_prices
from adacompute.features.text import extract_features
from adacompute.graders.grader import Grader, load_grader
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.spending.token_prices import TokenPrices, parse_token_prices
from adacompute.stages.import_samples import (
    check_grades,
    check_parsed,
    find_model,
    pool_arms,
    read_graded,
)
from adacompute.stages.inputs import (
    describe_source,
    find_settings,
    find_template,
    hash_run,
    make_pool,
)
from adacompute.storage.store import SAMPLES as SAMPLES_FILE
from adacompute.storage.store import Run, SampleSet, encode_samples, hash_table

if TYPE_CHECKING:
    from adacompute.core.answers import Answers
    from adacompute.evaluation.pool import Pool
    from adacompute.models.messages import Settings
    from adacompute.models.templates import Template

BATCH_ROWS = 10_000
"""Rows of a Hugging Face dataset that are read at once."""


class ArrowStream(Protocol):
    """A table of any library that has the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None, /) -> Any:  # noqa: ANN401
        """Return a capsule with the stream."""
        ...


class HubDataset(Protocol):
    """A dataset of Hugging Face, in memory or streamed."""

    def with_format(self, kind: Any = None, /) -> Any:  # noqa: ANN401
        """Return the dataset in another format."""
        ...


SampleSource: TypeAlias = str | PathLike[str] | ArrowStream | HubDataset
TokenPriceSource: TypeAlias = str | PathLike[str] | Mapping[str, TokenPrices]


@dataclass(frozen=True)
class SampleOrigin:
    """How samples were drawn, where that is known."""

    model: str | None = None
    template: Template | None = None
    settings: Settings | None = None


class Samples(Tabular):
    """Recorded and graded samples: one row per sample, several samples per question.

    `read_samples` makes it. ``len`` is the number of questions. ``grader`` extracts answers when a
    policy runs, ``unit`` is what budgets are in, ``model`` is the model that was sampled,
    ``template`` and ``settings`` are how, where that is known.
    """

    def __init__(
        self,
        table: Any,  # noqa: ANN401 - pyarrow has no types
        *,
        grader: Grader | None = None,
        costs: CostModel = COUNT_SAMPLES,
        origin: SampleOrigin | None = None,
        data_hash: str | None = None,
    ) -> None:
        origin = origin or SampleOrigin()
        self._table = table
        self._hash = data_hash
        self.grader = grader
        self.costs = costs
        self.model = origin.model
        self.template = origin.template
        self.settings = origin.settings

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def n_samples(self) -> int:
        """Number of samples of all questions together."""
        return int(self._table.num_rows)

    @property
    def unit(self) -> str:
        """Unit of costs and budgets."""
        return self.costs.unit

    @cached_property
    def encoded(self) -> SampleSet:
        """The samples as numbers, sorted by question."""
        return encode_samples(self._table)

    @property
    def answers(self) -> Answers:
        """Answer class and grade of every sample, question by question."""
        return self.encoded.answers

    @property
    def question_ids(self) -> list[str]:
        """Id of each question."""
        return self.encoded.id

    @property
    def questions(self) -> list[str | None]:
        """Text of each question, None where it was not recorded."""
        return self.encoded.text

    @property
    def keys(self) -> KeyArray:
        """Key of each question, as policies see it in `State`."""
        return self.encoded.key

    @cached_property
    def data_hash(self) -> str:
        """Hash of the samples and their grades."""
        return self._hash or hash_table(self._table)

    def features(self, name: str = "paper") -> Float32Array:
        """Compute a set of text features of each question."""
        return extract_features(pa.array(self.questions, pa.string()), features=name)

    def utility_table(self, levels: Sequence[int] = (1, 2, 4, 8, 16)) -> UtilityTable:
        """Estimate the accuracy and the cost of each number of samples on each question."""
        return self.pool().table(tuple(levels))

    def pool(self, *, features: str = "paper") -> Pool:
        """Return the samples as evaluation reads them."""
        return make_pool(self.encoded, costs=self.costs, features=features)

    def positions(self, keys: KeyArray) -> IntArray:
        """Return the positions of the questions with these keys, in their own order."""
        return np.flatnonzero(np.isin(self.keys, keys))

    def take(self, questions: IntArray | Sequence[int]) -> Samples:
        """Return the samples of these questions, by their positions."""
        ids = np.asarray(self.question_ids, dtype=object)[np.asarray(questions, dtype=np.int64)]
        kept = pc.is_in(self._table["question_id"], pa.array(ids.tolist(), pa.string()))
        return self._replace(self._table.filter(kept))

    def drop_unparsed(self) -> Samples:
        """Return the samples whose answer could be parsed."""
        return self._replace(self._table.filter(pc.is_valid(self._table["answer"])))

    def _replace(self, table: Any) -> Samples:  # noqa: ANN401 - pyarrow has no types
        known: dict[str, Any] = {"grader": self.grader, "costs": self.costs}
        origin = SampleOrigin(self.model, self.template, self.settings)
        return Samples(table, origin=origin, **known)

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the samples as a pyarrow Table, one row per sample."""
        return self._table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:  # noqa: ANN401
        """Export the samples to any library that reads Arrow streams."""
        return self._table.__arrow_c_stream__(requested_schema)

    def _title(self) -> str:
        right, unparsed = self.answers.correct.mean(), self._table["answer"].null_count
        model = "" if self.model is None else f", model {self.model}"
        return (
            f"Samples: {len(self)} questions, {self.n_samples} samples, {right:.1%} correct, "
            f"{unparsed / self.n_samples:.1%} unparsed, unit {self.unit}{model}"
        )

    def _columns(self) -> tuple[str, ...]:
        return ("question_id", "question", "gold", "sample", "answer", "correct")

    def __repr__(self) -> str:
        return f"<{self._title()}>"


def read_samples(
    source: SampleSource,
    *,
    grader: str | Grader | None = None,
    gold: str | PathLike[str] | None = None,
    columns: Mapping[str, str] | None = None,
    model: str | None = None,
    unit: str = "samples",
    token_prices: TokenPriceSource | None = None,
    price_as: Mapping[str, str] | None = None,
    native_n: bool = False,
) -> Samples:
    """Read recorded samples from a path, the name ``example``, or a table in memory.

    ``grader`` grades samples that have no grades, by their column ``gold`` or by the question set
    ``gold``; it also extracts answers when a policy runs. ``columns`` maps our names of columns to
    those of the source, where they cannot be guessed. Budgets are in ``unit``; ``token_prices`` are
    for money, and ``price_as`` maps models that a file of them does not list to listed ones. Equal
    answers with different grades are refused.

    >>> len(read_samples("example"))
    300
    """
    path = resolve_source(Path(source)) if isinstance(source, str | PathLike) else None
    grader = grader or find_grader(path)
    judge = load_grader(grader) if isinstance(grader, str) else grader
    costs = CostModel(unit, _read_prices(token_prices, unit, price_as), native_n)
    known: dict[str, Any] = {"grader": judge, "costs": costs}
    if path is not None and (path / SAMPLES_FILE).is_file():
        return _select_prices(_read_run(Run(path), model, known), token_prices, price_as)
    found = _to_arrow(source) if path is None else path
    reference = None if gold is None else str(gold)
    table = pool_arms(read_graded(found, judge, reference, columns=columns).samples, judge)
    origin = _find_origin(path, model or find_model(table))
    samples = Samples(table, origin=origin, **known)
    _select_prices(samples, token_prices, price_as)
    if judge is not None:
        check_parsed(samples.encoded)
    check_grades(samples.encoded)
    return samples


def _find_origin(path: Path | None, model: str | None) -> SampleOrigin:
    """Return how samples were drawn: the policy of the example records how those were."""
    if path is None or path != find_example():
        return SampleOrigin(model)
    bundle = load_bundle(locate_bundle(Path(EXAMPLE)))
    return SampleOrigin(model, bundle.template, bundle.settings)


def _read_run(run: Run, model: str | None, known: dict[str, Any]) -> Samples:
    """Read the samples of a run directory, with the grader that it records."""
    source = describe_source(run)
    if known["grader"] is None and source.get("grader"):
        known["grader"] = load_grader(source["grader"])
    model = model or source.get("model")
    origin = SampleOrigin(model, find_template(source), find_settings(source))
    return Samples(run.samples(), origin=origin, data_hash=hash_run(run), **known)


def _to_arrow(source: object) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a table in memory as a pyarrow Table."""
    if hasattr(source, "with_format"):
        if isinstance(source, Mapping):
            raise ConfigError(f"choose one of the splits {', '.join(source)} of the dataset")
        # Iterating respects the rows that were selected; the table behind a dataset does not.
        batches = source.with_format("arrow").iter(batch_size=BATCH_ROWS)
        tables = list(batches)
        return pa.concat_tables(tables) if tables else pa.table({})
    if hasattr(source, "__arrow_c_stream__"):
        return pa.table(source)
    raise ConfigError(
        f"samples cannot be read from a {type(source).__name__}: give a path, a table with "
        "__arrow_c_stream__ (pandas, polars, pyarrow, DuckDB) or a Hugging Face dataset"
    )


def _read_prices(
    source: TokenPriceSource | None, unit: str, price_as: Mapping[str, str] | None
) -> Mapping[str, TokenPrices] | None:
    if price_as and (source is None or isinstance(source, Mapping)):
        raise ConfigError("price_as names a model of a price file: pass the file as token_prices=")
    if source is None:
        return None
    if unit != "money":
        raise ConfigError(f"token prices are for costs in money, not in {unit}: pass unit='money'")
    return source if isinstance(source, Mapping) else parse_token_prices(Path(source), price_as)


def _select_prices(
    samples: Samples, source: TokenPriceSource | None, price_as: Mapping[str, str] | None
) -> Samples:
    """Keep only the prices of the samples' models if they are from a public list."""
    prices = samples.costs.token_prices
    if prices is not None and isinstance(source, str | PathLike):
        models = [*samples.to_arrow()["model"].unique().to_pylist(), *(price_as or {})]
        kept = select_token_prices(prices, Path(source), models)
        samples.costs = replace(samples.costs, token_prices=kept)
    return samples


def check_samples(value: object) -> Samples:
    """Return samples, or say how they are made."""
    if not isinstance(value, Samples):
        raise DataError(
            f"expected Samples, got {type(value).__name__}: call ada.read_samples first"
        )
    return value
