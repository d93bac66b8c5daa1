"""Constraints: the best mean utility within limits on several mean costs, by linear programming.

The paper names several constraints as future work. The optimum mixes levels for at most as many
questions as there are limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from adacompute.core.errors import InfeasibleBudget
from adacompute.core.types import FloatArray


def solve_constraints(
    utility: FloatArray, costs: Sequence[FloatArray], limits: Sequence[float]
) -> FloatArray:
    """Return the probability of each level on each question, (N, K).

    ``costs`` are (K,) or (N, K), one array per limit on a mean cost per question.
    """
    size, n_levels = utility.shape
    by_level = [np.broadcast_to(cost, utility.shape).ravel() / size for cost in costs]
    found = linprog(
        -utility.ravel() / size,
        A_ub=np.stack(by_level),
        b_ub=np.asarray(limits),
        A_eq=np.kron(np.eye(size), np.ones(n_levels)),
        b_eq=np.ones(size),
    )
    if found.x is None:
        raise InfeasibleBudget("no mixture of levels is within all limits: raise one of them")
    return np.asarray(found.x).reshape(utility.shape)
