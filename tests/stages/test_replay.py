from __future__ import annotations

import numpy as np
import pytest

from adacompute.stages.research.replay import _interval


def test_few_requests_have_no_interval() -> None:
    assert _interval("agreement", np.ones(0)) == {
        "agreement": None,
        "agreement_low": None,
        "agreement_high": None,
    }
    assert _interval("agreement", np.ones(3))["agreement_low"] is None
    few, many = (_interval("a", np.ones(size)) for size in (10, 1000))
    assert few["a_low"] == pytest.approx(0.722, abs=1e-3)  # Wilson's for 10 of 10
    assert many["a_low"] == pytest.approx(0.996, abs=1e-3)
    assert few["a_high"] == 1.0
