"""Paper claims, ablation: claims about classifiers, sets of levels and features.

Each has its judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reproduction.classifier_ablation import BY_QUESTION, BY_ROW
from reproduction.verdicts import (
    HALF,
    NOTHING,
    TOLERANCE,
    ExhibitData,
    Judgement,
    NotMeasurable,
    PaperClaim,
    decide,
    percent,
    points,
)

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from reproduction.ablations import Granularity, LevelSet
    from reproduction.classifier_ablation import Ablation
    from reproduction.feature_importance import FeatureImportance

TREES, LINEAR, OTHERS = ("gbm", "forest"), ("logistic", "svm"), ("logistic", "svm", "mlp")
MAX_LINEAR_COST, MAX_MLP_COST, MAX_COST_ERROR = 1.05, 1.2, 0.1
MIN_GAP_RATIO, SAME_ACCURACY, MAX_MISTAKES, SAME_SLOPE = 4.0, 0.005, 0.25, 0.2
MIN_STEP, COARSE_BUDGETS = 0.005, (1.5, 4.0)
BIMODAL_SHARE = 0.95
MIN_IMPORTANCE, MAX_IMPORTANCE = 0.03, 0.11
"""Half of the smallest importance that the paper reports, and the largest."""

TOP_FEATURES = (
    "has_multi_step_word",
    "unique_word_ratio",
    "prompt_length_words",
    "entropy_estimate",
)
"""The paper's most important features, without the one that needs the reference answer."""


def _both(ablation: Ablation, classifier: str, score: str) -> FloatArray:
    """A score of a classifier with splits by row and by question."""
    found = [ablation.mean(classifier, split, score) for split in (BY_ROW, BY_QUESTION)]
    if np.isnan(found).any():
        raise NotMeasurable(f"the classifier {classifier} could not be fitted")
    return np.array(found)


def judge_gap_ratio(data: ExhibitData) -> Judgement:
    """Judge how many times smaller the oracle gap of trees is than that of the others."""
    ablation: Ablation = data["ablation"]
    trees = np.max([_both(ablation, name, "oracle_gap") for name in TREES], axis=0)
    others = np.min([_both(ablation, name, "oracle_gap") for name in OTHERS], axis=0)
    paper, held_out = (others / np.maximum(trees, TOLERANCE)).tolist()
    return Judgement(
        f"{paper:.1f} times", f"{held_out:.1f} times", decide(held_out >= MIN_GAP_RATIO)
    )


def judge_linear_cost(data: ExhibitData) -> Judgement:
    """Judge whether linear classifiers choose level 1 nearly always."""
    ablation: Ablation = data["ablation"]
    paper, held_out = np.max([_both(ablation, name, "cost") for name in LINEAR], axis=0).tolist()
    return Judgement(f"{paper:.2f}", f"{held_out:.2f}", decide(held_out <= MAX_LINEAR_COST))


def judge_mlp_cost(data: ExhibitData) -> Judgement:
    """Judge whether the network spends a little more than the linear classifiers."""
    ablation: Ablation = data["ablation"]
    linear = np.max([_both(ablation, name, "cost") for name in LINEAR], axis=0)
    paper, held_out = _both(ablation, "mlp", "cost").tolist()
    verdict = decide(linear[1] < held_out <= MAX_MLP_COST)
    return Judgement(f"{paper:.2f}", f"{held_out:.2f}", verdict)


def judge_tree_cost(data: ExhibitData) -> Judgement:
    """Judge whether trees spend what the oracle spends."""
    ablation: Ablation = data["ablation"]
    paper, held_out = np.mean([_both(ablation, name, "cost") for name in TREES], axis=0).tolist()
    oracle = ablation.oracle_cost
    verdict = decide(abs(held_out - oracle) <= MAX_COST_ERROR * oracle)
    return Judgement(f"{paper:.2f} of {oracle:.2f}", f"{held_out:.2f} of {oracle:.2f}", verdict)


def judge_equal_trees(data: ExhibitData) -> Judgement:
    """Judge whether boosted trees and forests are equally accurate."""
    ablation: Ablation = data["ablation"]
    boosted, forest = (_both(ablation, name, "accuracy") for name in TREES)
    paper, held_out = (boosted - forest).tolist()
    return Judgement(points(paper), points(held_out), decide(abs(held_out) <= SAME_ACCURACY))


def judge_tree_mistakes(data: ExhibitData) -> Judgement:
    """Judge the share of the trees' mistakes."""
    ablation: Ablation = data["ablation"]
    paper, held_out = (1 - _both(ablation, "gbm", "imitation")).tolist()
    return Judgement(percent(paper), percent(held_out), decide(held_out <= MAX_MISTAKES))


def judge_tight_bound(data: ExhibitData) -> Judgement:
    """Judge whether regret grows with the share of mistakes as the mean of M does."""
    ablation: Ablation = data["ablation"]
    if ablation.mean_loss < TOLERANCE:
        raise NotMeasurable("no level loses anything")
    found = []
    for split in (BY_ROW, BY_QUESTION):
        own = [trial for trial in ablation.trials if trial.split_by == split]
        error = np.array([1 - trial.imitation for trial in own])
        regret = np.array([trial.regret for trial in own])
        slope = float(error @ regret / max(TOLERANCE, error @ error))
        found.append(slope / ablation.mean_loss)
    paper, held_out = found
    verdict = decide(abs(held_out - 1) <= SAME_SLOPE)
    return Judgement(f"{paper:.2f} of mean M", f"{held_out:.2f} of mean M", verdict)


def judge_coarse_levels(data: ExhibitData) -> Judgement:
    """Judge the gain of the default levels over coarse ones."""
    granularity: Granularity = data["granularity"]
    coarse, default = (_level_set(granularity, name) for name in ("coarse", "default"))
    paper = default.in_sample_at_main - coarse.in_sample_at_main
    held_out = default.cross_fitted_at_main - coarse.cross_fitted_at_main
    return Judgement(points(paper, 2), points(held_out, 2), decide(held_out >= MIN_STEP))


def judge_coarse_frontier(data: ExhibitData) -> Judgement:
    """Judge at which budgets coarse levels lose most."""
    granularity: Granularity = data["granularity"]
    coarse, default = (_level_set(granularity, name) for name in ("coarse", "default"))
    paper = _largest_loss(default.budgets, default.in_sample, coarse.budgets, coarse.in_sample)
    held_out = _largest_loss(
        default.cross_fitted_budgets,
        default.cross_fitted,
        coarse.cross_fitted_budgets,
        coarse.cross_fitted,
    )
    low, high = COARSE_BUDGETS
    return Judgement(f"at B = {paper:g}", f"at B = {held_out:g}", decide(low <= held_out <= high))


def _largest_loss(
    budgets: tuple[float, ...], finer: FloatArray, other: tuple[float, ...], coarser: FloatArray
) -> float:
    """Budget at which the coarser levels are furthest below the finer ones."""
    common = [budget for budget in budgets if budget in other]
    loss = [finer[budgets.index(b)] - coarser[other.index(b)] for b in common]
    return common[int(np.argmax(loss))]


def judge_bimodal_levels(data: ExhibitData) -> Judgement:
    """Judge whether coarse levels leave the oracle only 1 and 8."""
    coarse = _level_set(data["granularity"], "coarse")
    share = float(coarse.shares[:2].sum())
    return Judgement(percent(share), NOTHING, decide(share >= BIMODAL_SHARE))


def _level_set(granularity: Granularity, name: str) -> LevelSet:
    if name not in granularity.level_sets:
        raise NotMeasurable(f"the run has too few samples for {name} levels")
    return granularity.level_sets[name]


def judge_even_importance(data: ExhibitData) -> Judgement:
    """Judge whether no feature dominates."""
    features: FeatureImportance = data["features"]
    if not features.gain.any():
        raise NotMeasurable("all questions have the same label")
    used = features.gain[features.gain > 0]
    low, high = float(used.min()), float(used.max())
    verdict = decide(low >= MIN_IMPORTANCE and high <= MAX_IMPORTANCE)
    return Judgement(f"{low:.2f} to {high:.2f}", NOTHING, verdict)


def judge_top_features(data: ExhibitData) -> Judgement:
    """Judge how many of the paper's top features are among ours, by gain and by shuffling."""
    features: FeatureImportance = data["features"]
    if missing := sorted(set(TOP_FEATURES) - set(features.names)):
        raise NotMeasurable(f"the run does not record {', '.join(missing)}")
    counts = []
    for values in (features.gain, features.held_out):
        top = [features.names[f] for f in np.argsort(-values, kind="stable")[:5].tolist()]
        counts.append(len(set(top) & set(TOP_FEATURES)))
    shown = [f"{count} of 4" for count in counts]
    return Judgement(shown[0], shown[1], decide(counts[1] == len(TOP_FEATURES)))


def judge_fractions(data: ExhibitData) -> Judgement:
    """Judge whether fractions are most common in questions of the largest level."""
    means = _level_means(data, "has_fraction")
    return Judgement(_show(means), NOTHING, decide(int(np.nanargmax(means)) == len(means) - 1))


def judge_word_length(data: ExhibitData) -> Judgement:
    """Judge whether the length of words tells level 1 from levels 8 and 16."""
    means = _level_means(data, "avg_word_length")
    sides = means[0] * means[-2:]
    return Judgement(_show(means), NOTHING, decide(np.nanmax(sides) < 0))


def _level_means(data: ExhibitData, name: str) -> FloatArray:
    features: FeatureImportance = data["features"]
    if name not in features.names:
        raise NotMeasurable(f"the run has no feature {name}")
    means = features.level_means[features.names.index(name)]
    if np.isnan(means[-1]):
        raise NotMeasurable(f"no question has level {features.levels[-1]}")
    if float(np.nanmax(np.abs(means))) < TOLERANCE:
        raise NotMeasurable(f"{name} is the same at every level")
    return np.asarray(means)


def _show(means: FloatArray) -> str:
    return ", ".join("–" if np.isnan(mean) else f"{mean:+.1f}" for mean in means.tolist())


def judge_own_signatures(data: ExhibitData) -> Judgement:
    """Judge how many features have their extreme at a level between the ends."""
    features: FeatureImportance = data["features"]
    means = features.level_means[:, ~np.isnan(features.level_means).all(axis=0)]
    varied = means[np.ptp(means, axis=1) > TOLERANCE]
    if means.shape[1] < 3 or not len(varied):  # noqa: PLR2004 - no level between the ends
        raise NotMeasurable("the labels have no level between the smallest and the largest")
    extreme = np.abs(varied).argmax(axis=1)
    share = float(((extreme > 0) & (extreme < means.shape[1] - 1)).mean())
    return Judgement(percent(share), NOTHING, decide(share >= HALF))


def judge_other_features(_: ExhibitData) -> Judgement:
    """The figure of the paper names features that its list does not have."""
    raise NotMeasurable(
        "has_square_roots, has_equation and has_multi_subproblems are not in the 16"
    )


def judge_single_pass(_: ExhibitData) -> Judgement:
    """A feature of the paper's figure cannot be known before the answer is graded."""
    raise NotMeasurable("single_pass_acc needs the reference answer, so it is not a feature")


ABLATION_CLAIMS = (
    PaperClaim(
        "The oracle gap of trees is four times smaller than that of other classifiers",
        "Section 5.5",
        "about 4 times",
        "at least 4 times with splits by question",
        judge_gap_ratio,
    ),
    PaperClaim(
        "Linear classifiers choose level 1 nearly always",
        "Table 7",
        "cost 1.00–1.03",
        "the cost is at most 1.05 with splits by question",
        judge_linear_cost,
    ),
    PaperClaim(
        "The network spends a little more than linear classifiers",
        "Table 7",
        "cost 1.11",
        "more than they do and at most 1.2, with splits by question",
        judge_mlp_cost,
    ),
    PaperClaim(
        "Trees spend what the oracle spends",
        "Table 7",
        "cost 2.16–2.17",
        "within 10 % with splits by question",
        judge_tree_cost,
    ),
    PaperClaim(
        "Boosted trees and forests are equally accurate",
        "Table 7",
        ".529 both",
        "within 0.5 points with splits by question",
        judge_equal_trees,
    ),
    PaperClaim(
        "Trees are wrong on 8 to 25 % of the rows",
        "Appendix H.1",
        "8–25 %",
        "at most 25 % with splits by question",
        judge_tree_mistakes,
    ),
    PaperClaim(
        "Regret grows with the mistakes as mean M does",
        "Figure 10b",
        "tight up to a constant",
        "the slope is within 20 % of mean M with splits by question",
        judge_tight_bound,
    ),
    PaperClaim(
        "Default levels gain about a point over coarse ones at B = 2",
        "Figure 12c",
        "about 1 point",
        "at least 0.5 points, cross-fitted",
        judge_coarse_levels,
    ),
    PaperClaim(
        "Coarse levels lose most at budgets of 1.5 to 4",
        "Figure 12a",
        "B = 1.5–4",
        "the largest loss is at such a budget, cross-fitted",
        judge_coarse_frontier,
    ),
    PaperClaim(
        "Coarse levels leave the oracle only 1 and 8",
        "Figure 12b",
        "bimodal",
        "at least 95 % of the questions get them at B = 2",
        judge_bimodal_levels,
    ),
    PaperClaim(
        "Importance is even, without a dominant feature",
        "Figure 13a",
        "0.06–0.11",
        "every feature that the trees use has a normalised gain of 0.03 to 0.11",
        judge_even_importance,
    ),
    PaperClaim(
        "Multi-step words, unique words, length and entropy matter most",
        "Figure 13a",
        "among the top five",
        "all four are among the top five by shuffling, held out",
        judge_top_features,
    ),
    PaperClaim(
        "Fractions are most common in questions of level 16",
        "Figure 13b",
        "dark red",
        "the standardised mean is largest at the largest level",
        judge_fractions,
    ),
    PaperClaim(
        "The length of words tells level 1 from 8 and 16",
        "Figure 13b",
        "splits cleanly",
        "the standardised means have opposite signs",
        judge_word_length,
    ),
    PaperClaim(
        "Levels between the ends have signatures of their own",
        "Figure 13b",
        "not interpolations",
        "at least half of the features are extreme between the ends",
        judge_own_signatures,
    ),
    PaperClaim(
        "Square roots, equations and subproblems tell high levels",
        "Figure 13b",
        "dark red",
        "their standardised means are largest there",
        judge_other_features,
    ),
    PaperClaim(
        "The accuracy of a single pass tells level 1 from 8 and 16",
        "Figure 13b",
        "splits cleanly",
        "the standardised means have opposite signs",
        judge_single_pass,
    ),
)
"""In the order of the paper."""
