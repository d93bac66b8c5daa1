"""Types: the nouns of the line, as plain data.

N questions, K levels, index order always [question, level]. A *level* is one operating mode, a
*budget* is the allowed mean cost, a *price* is the utility that one more unit of cost must buy.

Costs are whole multiples of a power of two, so that their sums do not depend on the order of
addition and a budget is never overspent by rounding: whole numbers are kept as they are, others
are rounded up to the next multiple. These types know nothing of where their numbers come from.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from adacompute.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
KeyArray: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

PLACES = 20
"""Binary places that costs are kept to: of one, or of the dearest of them where that is less."""

MAX_COST = 2.0**32
"""Up to this size a float holds every multiple of 2⁻²⁰, and so every difference."""

MOST_PLACES = 60
"""However small the costs: no price of anything is told in more."""

MAX_LEVEL = 2**31 - 1
"""Largest number of samples per question: samples are numbered with 32 bits."""


@dataclass(frozen=True)
class Level:
    """One operating mode: how many samples, of which model, with which settings."""

    name: str
    n_samples: int
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def make_levels(samples: tuple[int, ...], *, model: str | None = None) -> tuple[Level, ...]:
    """Levels that differ only in how many samples they draw.

    >>> [level.name for level in make_levels((1, 2, 4))]
    ['1', '2', '4']
    """
    if not samples or list(samples) != sorted(set(samples)) or samples[0] < 1:
        raise DataError(f"a ladder is rising numbers of samples from 1 on, not {samples}")
    return tuple(Level(name=str(n), n_samples=n, model=model) for n in samples)


def hash_keys(key: KeyArray) -> KeyArray:
    """Scramble keys so that ties between questions break without regard to their order.

    >>> bool((hash_keys(np.arange(3, dtype=np.uint64)) == np.arange(3)).any())
    False
    """
    mixed = np.asarray(key, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def hash_text(text: str) -> int:
    """Key of a question that has no other name than its text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def text_id(text: str) -> str:
    """Name of a question by its text, where the text itself may not be kept.

    >>> text_id("What is 7 + 6?")
    '3a781a84d1980c8f'
    """
    return f"{hash_text(text):016x}"


def quantise_cost(cost: npt.ArrayLike) -> FloatArray:
    """Round costs up to what sums exactly; refuse what cannot be a cost.

    Whole numbers stay. Others are rounded by less than two millionths: of one, or of the dearest
    where all are less than one, so that money a draw is as exact as tokens are. They then stay.

    >>> quantise_cost([1.0, 0.1]).tolist()
    [1.0, 0.10000038146972656]
    >>> rounded = quantise_cost([2.5e-6, 4e-5])
    >>> rounded.tolist() == quantise_cost(rounded).tolist()
    True
    """
    array = np.asarray(cost, dtype=np.float64)
    if array.size == 0:
        return array
    low, high = float(array.min()), float(array.max())
    if not (low >= 0.0 and high <= MAX_COST):  # NaN fails both comparisons
        raise DataError(
            f"costs run from {low} to {high}; each must be a number from 0 to {MAX_COST:.0f}"
        )
    if bool((array == np.rint(array)).all()):
        return array
    units = cost_units(high)
    return np.asarray(np.ceil(array * units) / units)


def cost_units(dearest: float) -> float:
    """Units in one, a power of two, of which all whole costs up to this one are multiples.

    The smaller the dearest, the finer they are: those of a table divide those of its parts.

    >>> cost_units(100.0) == cost_units(1.0) == 2**20, cost_units(0.25) == 2**22
    (True, True)
    """
    if not 0.0 < dearest < 1.0:
        return 2.0**PLACES
    mantissa, exponent = math.frexp(dearest)
    above = exponent if mantissa > 0.5 else exponent - 1  # noqa: PLR2004 - 2 ** above >= dearest
    return 2.0 ** min(PLACES - above, MOST_PLACES)


def sum_cost(cost: FloatArray) -> Fraction:
    """Sum whole costs exactly, in whatever order they come.

    >>> sum_cost(quantise_cost([1.5, 2.0]))
    Fraction(7, 2)
    """
    whole = np.floor(cost)
    units = cost_units(float(cost.max(initial=0.0)))
    parts = int(((cost - whole) * units).sum())
    return int(whole.astype(np.int64).sum()) + Fraction(parts, int(units))


@dataclass(frozen=True, eq=False)
class UtilityTable:
    """What every level is worth and costs on every question.

    ``utility`` is (N, K) in any unit. ``cost`` is (K,) if it is the same for all questions, else
    (N, K). ``key`` identifies each question when ties are broken; the default is its row number.
    ``extra_costs`` holds further costs by name, each (K,) or (N, K), for budgets on several costs.
    If ``continuous``, the levels are knots of a piecewise linear utility and any cost between two
    knots can be chosen. ``rounding`` is the mean amount by which costs of the cheapest levels were
    rounded up.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
    >>> len(table), table.n_levels
    (2, 2)
    """

    utility: FloatArray
    cost: FloatArray
    key: KeyArray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    extra_costs: Mapping[str, FloatArray] = field(default_factory=dict)
    continuous: bool = False
    standard_error: FloatArray | None = None
    rounding: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        utility = np.asarray(self.utility, dtype=np.float64)
        if utility.ndim != 2 or utility.shape[1] < 1:  # noqa: PLR2004 - (N, K)
            raise DataError(f"utility must be (questions, levels), not of shape {utility.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            total = utility.sum()
        if not np.isfinite(total) and not np.isfinite(utility).all():
            raise DataError("utility holds a NaN or an infinite number; every entry must be finite")
        key = np.asarray(self.key, dtype=np.uint64)
        if key.shape == (0,):
            key = np.arange(len(utility), dtype=np.uint64)
        if key.shape != (len(utility),):
            raise DataError(f"{len(utility)} questions need as many keys, not {key.shape}")
        if self.standard_error is not None and np.shape(self.standard_error) != utility.shape:
            raise DataError(f"{utility.shape} utilities need as many standard errors")
        limited = {
            name: self._costs(name, c, utility.shape) for name, c in self.extra_costs.items()
        }
        given = np.asarray(self.cost, dtype=np.float64)
        cost = self._costs("cost", given, utility.shape)
        if cost is not given and cost.size:
            rounding = float((cost.min(axis=-1) - given.min(axis=-1)).mean())
            object.__setattr__(self, "rounding", rounding)
        object.__setattr__(self, "utility", utility)
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "extra_costs", limited)

    @staticmethod
    def _costs(name: str, cost: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
        try:
            whole = quantise_cost(cost)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        if whole.shape not in (shape, shape[1:]):
            raise DataError(f"{name} must be of shape {shape[1:]} or {shape}, not {whole.shape}")
        return whole

    def __len__(self) -> int:
        return len(self.utility)

    @property
    def n_levels(self) -> int:
        """How many levels there are."""
        return int(self.utility.shape[1])

    @property
    def costs(self) -> FloatArray:
        """Cost of every level on every question, (N, K), without copying."""
        return np.broadcast_to(self.cost, self.utility.shape)

    def take(self, rows: slice | IntArray | BoolArray) -> UtilityTable:
        """Return these questions, with their keys."""

        def of(cost: FloatArray) -> FloatArray:
            return cost if cost.ndim == 1 else cost[rows]

        return _trusted(
            utility=self.utility[rows],
            cost=of(self.cost),
            key=self.key[rows],
            extra_costs={name: of(cost) for name, cost in self.extra_costs.items()},
            continuous=self.continuous,
            standard_error=None if self.standard_error is None else self.standard_error[rows],
            rounding=self.rounding,
        )

    def blocks(self, size: int) -> Iterator[UtilityTable]:
        """Cut into blocks of consecutive questions, without copying."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def cost_of(self, choice: IntArray, *, cost: FloatArray | None = None) -> FloatArray:
        """Return the cost of each question's chosen level."""
        cost = self.cost if cost is None else cost
        return cost[choice] if cost.ndim == 1 else cost[np.arange(len(self)), choice]

    def utility_of(self, choice: IntArray) -> FloatArray:
        """Return the utility of each question's chosen level."""
        return self.utility[np.arange(len(self)), choice]


def join_tables(tables: Sequence[UtilityTable]) -> UtilityTable:
    """Put tables of one cost one below the other, each with the costs that it has."""
    first = tables[0].cost
    shared = all(table.cost.ndim == 1 and np.array_equal(table.cost, first) for table in tables)
    return _trusted(
        utility=np.concatenate([table.utility for table in tables]),
        cost=first if shared else np.concatenate([table.costs for table in tables]),
        key=np.concatenate([table.key for table in tables]),
        extra_costs={},
        continuous=False,
        standard_error=None,
    )


def _trusted(**fields: Any) -> UtilityTable:  # noqa: ANN401 - the fields of the class above
    """Build a table from parts that were checked already: checking again would cost a pass."""
    table = object.__new__(UtilityTable)
    for name, value in fields.items():
        object.__setattr__(table, name, value)
    return table


@dataclass(frozen=True, eq=False)
class Split:
    """Questions that take another level with a probability, so that the mean cost meets the budget.

    Question ``question[i]`` takes ``level[i]`` with ``probability[i]``, else its deterministic
    choice. Empty when nothing is left to spend or nothing left to buy.
    """

    question: IntArray
    level: IntArray
    probability: FloatArray

    def __len__(self) -> int:
        return len(self.question)


@dataclass(frozen=True, eq=False)
class Trace:
    """Every step of the bisection: the bracket of prices and the mean costs at its ends."""

    low: FloatArray
    high: FloatArray
    middle: FloatArray
    cost_low: FloatArray
    cost_high: FloatArray
    cost_middle: FloatArray


@dataclass(frozen=True, eq=False)
class Allocation:
    """One level per question, and the proof of how good it is.

    ``cost`` and ``utility`` are means of the deterministic ``choice``, which never overspends;
    ``mixed_cost`` and ``mixed_utility`` those with the ``split``. No static policy over this table,
    randomised ones included, has a utility above ``bound`` within the budget; ``gap`` is what
    ``choice`` leaves below it. ``amount`` is what each question spends on a continuous table.
    """

    choice: IntArray
    price: float
    cost: float
    utility: float
    bound: float
    split: Split
    mixed_cost: float
    mixed_utility: float
    prices: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    amount: FloatArray | None = None
    trace: Trace | None = None

    @property
    def gap(self) -> float:
        """How far the deterministic choice can be below the best there is, at most."""
        return max(0.0, self.bound - self.utility)

    def shares(self, n_levels: int) -> FloatArray:
        """Share of questions at each level."""
        counts = np.bincount(self.choice, minlength=n_levels)
        return np.asarray(counts / max(1, len(self.choice)), dtype=np.float64)
