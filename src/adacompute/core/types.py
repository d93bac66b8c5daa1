"""Types: the data types that all other modules share.

N questions, K levels, index order always [question, level]. A *level* is a number of samples from
one model with given settings. A *budget* is the allowed mean cost per question. A *price* is the
utility that one more unit of cost must add to be worth spending.

Costs are multiples of a power of two, so that their sums do not depend on the order of addition and
rounding never overspends a budget. Integers stay as they are, other costs are rounded up to the
next multiple. These types do not know where their numbers come from.
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

COST_BITS = 20
"""Fractional bits of a cost, relative to 1 or to the largest cost if that is smaller."""

MAX_COST = 2.0**32
"""Largest cost for which a float represents every multiple of 2⁻²⁰ exactly."""

MAX_COST_BITS = 60
"""Fractional bits of the smallest costs."""

MAX_LEVEL = 2**31 - 1
"""Largest number of samples per question: samples are numbered with 32 bits."""


@dataclass(frozen=True)
class Level:
    """A number of samples, from one model, with given settings."""

    name: str
    n_samples: int
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def make_levels(n_samples: tuple[int, ...], *, model: str | None = None) -> tuple[Level, ...]:
    """Return levels that differ only in their number of samples.

    >>> [level.name for level in make_levels((1, 2, 4))]
    ['1', '2', '4']
    """
    if not n_samples or list(n_samples) != sorted(set(n_samples)) or n_samples[0] < 1:
        raise DataError(f"levels must be increasing numbers of samples from 1 on, got {n_samples}")
    return tuple(Level(name=str(n), n_samples=n, model=model) for n in n_samples)


def hash_keys(key: KeyArray) -> KeyArray:
    """Hash keys, so that breaking ties by key does not depend on the order of the keys.

    >>> bool((hash_keys(np.arange(3, dtype=np.uint64)) == np.arange(3)).any())
    False
    """
    mixed = np.asarray(key, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def hash_strings(values: Sequence[str]) -> KeyArray:
    """Hash each string to 64 bits, the same in every process and version."""
    digests = b"".join(
        hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for value in values
    )
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def replace_surrogates(text: str) -> str:
    r"""Replace halves of surrogate pairs, which are no text and which no file can hold.

    >>> replace_surrogates("5 \ud83d €")
    '5 ? €'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def hash_text(text: str) -> int:
    """Return a question's key from its text."""
    return hash_bytes(text.encode())


def hash_bytes(data: bytes) -> int:
    """Return a number of 64 bits that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def text_id(text: str) -> str:
    """Return a question's id from its text.

    >>> text_id("What is 7 + 6?")
    '3a781a84d1980c8f'
    """
    return f"{hash_text(text):016x}"


def quantise_cost(cost: npt.ArrayLike) -> FloatArray:
    """Round costs up to multiples that sum exactly; raise DataError if one is not a cost.

    Integers stay as they are. Other costs are rounded by less than two millionths of 1, or of the
    largest cost if all are below 1, so that small amounts of money are as precise as tokens.
    Rounding a rounded cost does not change it.

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
        raise DataError(f"costs must be numbers from 0 to {MAX_COST:.0f}, got {low} to {high}")
    if bool((array == np.rint(array)).all()):
        return array
    units = cost_units(high)
    return np.asarray(np.ceil(array * units) / units)


def cost_units(max_cost: float) -> float:
    """Return the number of units in a cost of 1: rounded costs are whole numbers of units.

    It is a power of two. The smaller the largest cost, the finer the units.

    >>> cost_units(100.0) == cost_units(1.0) == 2**20, cost_units(0.25) == 2**22
    (True, True)
    """
    if not 0.0 < max_cost < 1.0:
        return 2.0**COST_BITS
    mantissa, exponent = math.frexp(max_cost)
    above = exponent if mantissa > 0.5 else exponent - 1  # noqa: PLR2004 - 2 ** above >= max_cost
    return 2.0 ** min(COST_BITS - above, MAX_COST_BITS)


def sum_cost(cost: FloatArray) -> Fraction:
    """Sum rounded costs exactly.

    >>> sum_cost(quantise_cost([1.5, 2.0]))
    Fraction(7, 2)
    """
    whole = np.floor(cost)
    units = cost_units(float(cost.max(initial=0.0)))
    parts = int(((cost - whole) * units).sum())
    return int(whole.astype(np.int64).sum()) + Fraction(parts, int(units))


@dataclass(frozen=True, eq=False)
class UtilityTable:
    """Utility and cost of every level on every question.

    ``utility`` is (N, K) in any unit. ``cost`` is (K,) if it is the same for all questions, else
    (N, K). ``key`` identifies each question when ties are broken; the default is its row number.
    ``rounding`` is the mean amount by which costs of the cheapest levels were
    rounded up.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
    >>> len(table), table.n_levels
    (2, 2)
    """

    utility: FloatArray
    cost: FloatArray
    key: KeyArray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    rounding: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        utility = np.asarray(self.utility, dtype=np.float64)
        if utility.ndim != 2 or utility.shape[1] < 1:  # noqa: PLR2004 - (N, K)
            raise DataError(f"utility must have shape (questions, levels), got {utility.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            total = utility.sum()
        if not np.isfinite(total) and not np.isfinite(utility).all():
            raise DataError(
                "utility contains a NaN or an infinite number: every entry must be finite"
            )
        key = np.asarray(self.key, dtype=np.uint64)
        if key.shape == (0,):
            key = np.arange(len(utility), dtype=np.uint64)
        if key.shape != (len(utility),):
            raise DataError(f"key must have shape ({len(utility)},), got {key.shape}")
        unrounded = np.asarray(self.cost, dtype=np.float64)
        cost = quantise_cost(unrounded)
        if cost.shape not in (utility.shape, utility.shape[1:]):
            shape = utility.shape
            raise DataError(f"cost must have shape {shape[1:]} or {shape}, got {cost.shape}")
        if cost is not unrounded and cost.size:
            rounding = float((cost.min(axis=-1) - unrounded.min(axis=-1)).mean())
            object.__setattr__(self, "rounding", rounding)
        object.__setattr__(self, "utility", utility)
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "key", key)

    def __len__(self) -> int:
        return len(self.utility)

    @property
    def n_levels(self) -> int:
        """Number of levels."""
        return int(self.utility.shape[1])

    @property
    def costs(self) -> FloatArray:
        """Cost of every level on every question, (N, K), as a view."""
        return np.broadcast_to(self.cost, self.utility.shape)

    def take(self, rows: slice | IntArray | BoolArray) -> UtilityTable:
        """Return these questions."""
        return _without_checks(
            utility=self.utility[rows],
            cost=self.cost if self.cost.ndim == 1 else self.cost[rows],
            key=self.key[rows],
            rounding=self.rounding,
        )

    def blocks(self, size: int) -> Iterator[UtilityTable]:
        """Iterate over blocks of consecutive questions, as views."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def cost_of(self, choice: IntArray) -> FloatArray:
        """Return the cost of each question's chosen level."""
        if self.cost.ndim == 1:
            return self.cost[choice]
        return self.cost[np.arange(len(self)), choice]

    def utility_of(self, choice: IntArray) -> FloatArray:
        """Return the utility of each question's chosen level."""
        return self.utility[np.arange(len(self)), choice]


def join_tables(tables: Sequence[UtilityTable]) -> UtilityTable:
    """Concatenate the questions of tables."""
    first = tables[0].cost
    shared = all(table.cost.ndim == 1 and np.array_equal(table.cost, first) for table in tables)
    return _without_checks(
        utility=np.concatenate([table.utility for table in tables]),
        cost=first if shared else np.concatenate([table.costs for table in tables]),
        key=np.concatenate([table.key for table in tables]),
    )


def _without_checks(**fields: Any) -> UtilityTable:  # noqa: ANN401 - the fields of the class above
    """Build a table from arrays that were checked before, without another pass over them."""
    table = object.__new__(UtilityTable)
    for name, value in fields.items():
        object.__setattr__(table, name, value)
    return table


@dataclass(frozen=True, eq=False)
class Split:
    """Questions that are assigned a second level at random, so that the budget is used up.

    Question ``question[i]`` gets ``level[i]`` with ``probability[i]``, else its deterministic
    choice. Empty if the budget is used up without it, or if no upgrade is left.
    """

    question: IntArray
    level: IntArray
    probability: FloatArray

    def __len__(self) -> int:
        return len(self.question)


@dataclass(frozen=True, eq=False)
class Allocation:
    """One level per question, with a bound on how much better any other allocation can be.

    ``cost`` and ``utility`` are the means of the deterministic ``choice``, which never overspends.
    ``mixed_cost`` and ``mixed_utility`` are the means with the ``split``. Within the budget, no
    static policy over this table, randomised or not, has a utility above ``bound``; ``gap`` is the
    difference to ``utility``.
    """

    choice: IntArray
    price: float
    cost: float
    utility: float
    bound: float
    split: Split
    mixed_cost: float
    mixed_utility: float

    @property
    def gap(self) -> float:
        """Largest possible difference between the best utility and that of ``choice``."""
        return max(0.0, self.bound - self.utility)

    def shares(self, n_levels: int) -> FloatArray:
        """Return the share of questions at each level."""
        counts = np.bincount(self.choice, minlength=n_levels)
        return np.asarray(counts / max(1, len(self.choice)), dtype=np.float64)
