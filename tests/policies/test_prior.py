"""The prior: copies of a question are left out together."""

from __future__ import annotations

import numpy as np

from adacompute.policies.learners import assign_folds
from adacompute.policies.sequential.prior import PENALTIES, _ridge, fit_prior


def test_ridge_leaves_copies_out_together() -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(30, 4))
    group = np.repeat(np.arange(30), rng.integers(1, 4, 30))
    features = own[group]
    target = features[:, :1] + rng.normal(size=(len(group), 1))
    predicted, _ = _ridge(features, target, group)
    centred = target - target.mean()

    def without(one: int, penalty: float) -> float:
        kept = group != one
        x, y = features[kept], centred[kept]
        slope = np.linalg.solve(x.T @ x + penalty * np.eye(4), x.T @ y)
        return float((own[one] @ slope)[0])

    tried = [[without(one, penalty * 4) for one in group.tolist()] for penalty in PENALTIES]
    assert any(np.allclose(predicted[:, 0], each) for each in tried)


def test_copies_share_a_fold() -> None:
    group = np.repeat(np.arange(10), 3)
    fold = assign_folds(group, 4, seed=1)
    assert all(len(set(fold[group == one])) == 1 for one in range(10))
    assert set(fold) == {0, 1, 2, 3}


def test_copies_do_not_make_noise_look_informative() -> None:
    with_groups, without_groups = 0, 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        profile = np.repeat(rng.random((60, 5)), 4, axis=0)
        features = np.repeat(rng.normal(size=(60, 40)).astype(np.float32), 4, axis=0)
        group = np.repeat(np.arange(60), 4)
        with_groups += fit_prior(features, profile, group).inverse_penalty is not None
        # Without groups, copies look like independent questions.
        without_groups += fit_prior(features, profile, np.arange(240)).inverse_penalty is not None
    assert with_groups <= 2
    assert without_groups == 8
