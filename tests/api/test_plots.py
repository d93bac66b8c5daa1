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


def test_every_object_has_one_card(
    fitted: ada.Mixture, result: ada.Calibration, scores: ada.Scores
) -> None:
    for one in (fitted, result, scores, ada.Mixture()):
        assert one._repr_html_().count("<div style") <= 3
        assert one._repr_html_().count("<table>") == 1
    assert "Saves" in result._repr_html_() or "No saving" in result._repr_html_()


def test_a_fitted_policy_differs_from_an_unfitted_one(
    fitted: ada.Mixture, result: ada.Calibration, hundred: ada.Samples
) -> None:
    assert result.policy == "mixture"
    assert "not fitted" in ada.Mixture()._repr_html_()
    assert "fitted, not calibrated" in ada.Mixture().fit(hundred)._repr_html_()
    assert "calibrated for 1 to" in fitted._repr_html_()
