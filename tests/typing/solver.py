"""Uses of the public interface, as users write them: checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from adacompute import (
    AdaComputeError,
    BundleError,
    ConfigError,
    DataError,
    GraderError,
    InfeasibleBudget,
    MissingExtra,
    UtilityTable,
    __version__,
    make_levels,
    solve,
)
from adacompute.research import (
    Allocation,
    Answers,
    Estimate,
    Frontier,
    Level,
    Split,
    dual,
    estimate,
    frontier,
)

utility = np.array([[0.9, 0.9], [0.2, 0.8]])
table = UtilityTable(utility, np.array([1.0, 4.0]))
assert_type(len(table), int)
assert_type(table.n_levels, int)

found = solve(table, budget=2.5)
assert_type(found, Allocation)
assert_type(found.choice, NDArray[np.int64])
assert_type(found.price, float)
assert_type(found.cost, float)
assert_type(found.utility, float)
assert_type(found.bound, float)
assert_type(found.gap, float)
assert_type(found.split, Split)
assert_type(found.split.probability, NDArray[np.float64])
assert_type(found.shares(2), NDArray[np.float64])
assert_type(dual(table, 0.1, 2.5), float)

curve = frontier(table)
assert_type(curve, Frontier)
assert_type(curve.utility_at(2.0), float)
assert_type(curve.price_at(2.0), float)

answers = Answers.of([[0, 0, 1, -1]], correct=[[True, True, False, False]])
assert_type(answers.n_samples, NDArray[np.int64])
worth = estimate(answers, (1, 2, 4), vote="majority")
assert_type(worth, Estimate)
assert_type(worth.utility, NDArray[np.float64])
assert_type(UtilityTable(worth.utility, np.array([1.0, 2.0, 4.0])), UtilityTable)

levels = make_levels((1, 2, 4), model="small")
assert_type(levels, tuple[Level, ...])
assert_type(levels[0].n_samples, int)
assert_type(levels[0].model, str | None)
assert_type(__version__, str)

try:
    solve(table, budget=0.5)
except InfeasibleBudget as error:
    as_value: ValueError = error
except (ConfigError, DataError) as error:
    ours: AdaComputeError = error
except MissingExtra as error:
    as_import: ImportError = error
except (BundleError, GraderError) as error:
    ours = error

solve(table)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
solve(table, budget="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
make_levels([1, 2])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
