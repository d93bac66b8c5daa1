"""Own policy: a stopping rule of your own, compared with other policies on held-out questions.

Run it with ``python examples/own_policy.py``. It needs only the base install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

import adacompute as ada

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StopWhenAgreed(ada.Policy):
    """Sample one at a time until ``n_equal`` answers agree, up to ``max_samples``."""

    def __init__(self, n_equal: int, max_samples: int) -> None:
        self.n_equal = n_equal
        self.levels = ada.make_levels(tuple(range(1, max_samples + 1)))

    def decide(self, state: ada.State, price: float) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the next level of each question, or the one it has reached to stop."""
        agreed = state.observed.leading >= self.n_equal
        done = (state.level >= 0) & (agreed | (state.level == len(self.levels) - 1))
        return np.where(done, state.level, state.level + 1)


class Agreement(ada.Estimator):
    """The estimator of the rule: `fit` sets ``policy_``, here without learning anything."""

    def __init__(self, n_equal: int = 2, max_samples: int = 16) -> None:
        self.n_equal = n_equal
        self.max_samples = max_samples

    def fit(self, samples: ada.Samples) -> Self:  # noqa: ARG002 - a rule learns nothing
        """Set the policy; one that learns would use ``samples`` here."""
        self.policy_ = StopWhenAgreed(self.n_equal, self.max_samples)
        return self


def main() -> None:
    """Compare the rule with a published one and with the best mixture, at equal cost."""
    samples = ada.read_samples("example")
    print(ada.evaluate([Agreement(), ada.AdaptiveConsistency(), "mixture"], samples, budgets=[4.0]))


if __name__ == "__main__":
    main()
