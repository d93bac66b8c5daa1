"""Figures of results keep the style of the reader, and cards tell what was fitted."""

from __future__ import annotations

import numpy as np
import pytest

import adacompute as ada


@pytest.fixture(scope="module")
def fitted(hundred: ada.Samples) -> ada.Mixture:
    return ada.Mixture().fit(hundred)


@pytest.fixture(scope="module")
def result(fitted: ada.Mixture, hundred: ada.Samples) -> ada.Calibration:
    return ada.calibrate(fitted, hundred, today=5)


@pytest.fixture(scope="module")
def scores(hundred: ada.Samples) -> ada.Scores:
    return ada.evaluate(["retry", "fixed"], hundred, budgets=[1.5, 3], today=5)


def test_results_are_drawn_without_a_change_of_style(
    result: ada.Calibration, scores: ada.Scores
) -> None:
    mpl = pytest.importorskip("matplotlib")
    mpl.use("agg")
    from matplotlib import pyplot as plt

    before = dict(mpl.rcParams)
    _, own = plt.subplots()
    assert result.plot(own) is own
    labels = {line.get_label() for line in own.get_lines()}
    assert labels >= {"best uniform mixture", "your budget", "today: 5 samples"}
    new = scores.plot()
    assert new is not own
    lines = {line.get_label(): line for line in new.get_lines()}
    assert set(lines) == {"retry", "fixed", "best uniform mixture"}
    mixture = [100 * (row["accuracy"] - row["difference"]) for row in scores.rows[:2]]
    assert np.asarray(lines["best uniform mixture"].get_ydata()) == pytest.approx(mixture)
    assert "retry" in {one.get_text().split(":")[0] for one in scores.plot(kind="savings").texts}
    assert dict(mpl.rcParams) == before
    plt.close("all")


def test_plots_that_cannot_be_drawn_are_refused(
    hundred: ada.Samples, scores: ada.Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ada.ConfigError, match="kind"):
        scores.plot(kind="bars")  # type: ignore[arg-type]
    with pytest.raises(ada.ConfigError, match="today="):
        ada.evaluate("fixed", hundred, budgets=[1.5]).plot(kind="savings")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ada.MissingExtra, match="report"):
        scores.plot()
