"""The store of a collection: questions and arms keep their meaning, and samples are found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adacompute.collection import store as store_module
from adacompute.collection.store import Arm, CollectionStore
from adacompute.core.errors import DataError
from adacompute.models.messages import Sample
from adacompute.storage.paid_samples import FAILED, LOST, SCORE, Payment, write_segment

SMALL: Arm = {"arm": "small", "model": "m", "template": "t", "settings": "{}"}
BIG: Arm = {**SMALL, "arm": "big", "model": "n"}
FULL = Sample(
    "text",
    mean_logprob=-0.5,
    completion_tokens=3,
    finish_reason="stop",
    prompt_tokens=9,
    cached_tokens=2,
    reasoning_tokens=1,
    is_estimated=True,
    latency_s=0.25,
    samples_per_call=4,
    entropy=0.25,
    top_logprobs=5,
    min_logprob_window=-0.75,
    token_logprobs=b"packed",
)


def sampled(position: int, number: int, arm: str = "small", text: str = "text") -> Payment:
    return Payment(position, arm, number, 7, replace(FULL, text=text), attempt=1)


def score(position: int, number: int, value: float, arm: str = "small") -> Payment:
    return Payment(position, arm, number, 2, None, SCORE, 2, value)


def test_questions_and_arms_keep_their_places(tmp_path: Path) -> None:
    store = CollectionStore(tmp_path)
    assert store.register_questions(["b", "a", "b"]) == [0, 1, 0]
    store.register_arms([SMALL, BIG])
    again = CollectionStore(tmp_path)
    assert again.register_questions(["c", "a"]) == [2, 1]
    again.register_arms([{**SMALL, "arm": "other"}, BIG])
    last = CollectionStore(tmp_path)
    assert last.ids == ["b", "a", "c"]
    assert [arm["arm"] for arm in last.arms] == ["small", "big", "other"]


def test_an_arm_may_change_until_it_has_samples(tmp_path: Path) -> None:
    store = CollectionStore(tmp_path)
    store.register_questions(["a"])
    store.register_arms([SMALL, BIG])
    store.register_arms([{**SMALL, "model": "changed"}])
    store.register_arms([SMALL])
    write_segment(store.segments, 0, [sampled(0, 0)])
    for place in (store, again := CollectionStore(tmp_path)):
        place.note([sampled(0, 0)])
        place.register_arms([SMALL, {**BIG, "settings": '{"a":1}'}])
        with pytest.raises(DataError, match="'small' with another model and settings: collect"):
            place.register_arms([{**SMALL, "model": "x", "settings": "y"}])
    assert again.arms[0] == SMALL


def test_missing_and_unscored_samples_are_those_of_the_store(tmp_path: Path) -> None:
    store = CollectionStore(tmp_path)
    store.register_questions(["a", "b", "c"])
    payments = [
        *(sampled(0, number) for number in (0, 2)),
        *(sampled(1, number) for number in range(3)),
        sampled(0, 1, arm="big"),
        score(0, 2, 0.5),
        Payment(2, "small", 0, 9, None, FAILED, 3),
        Payment(2, "small", 0, 9, None, LOST, 4),
    ]
    write_segment(store.segments, 0, payments)
    store.note(payments)
    for place in (store, CollectionStore(tmp_path)):
        assert [place.missing("small", i, 3) for i in range(3)] == [[1], [], [0, 1, 2]]
        assert place.missing("small", 1, 5) == [3, 4], "more can be added later"
        assert place.missing("big", 0, 2) == [0]
        assert [place.unscored("small", i, 3) for i in range(3)] == [[0], [0, 1, 2], []]
        assert place.unscored("small", 1, 2) == [0, 1]
        assert place.count("small", [0, 1, 2], 3) == (5, 1)
        assert place.count("small", [0, 2], 2) == (1, 0)
        assert (place.has_samples("big"), place.has_samples("other")) == (True, False)


def test_samples_are_read_whole_in_order_and_with_their_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CollectionStore(tmp_path)
    store.register_questions([f"q{i}" for i in range(5)])
    write_segment(store.segments, 0, [sampled(4, 1), score(4, 0, 0.5), sampled(0, 0, arm="big")])
    write_segment(store.segments, 1, [sampled(4, 0), sampled(0, 0), score(2, 0, 0.1)])
    first, other = sampled(4, 0), sampled(4, 1)
    scored = replace(first, score=0.5, cost=first.cost + 2)
    monkeypatch.setattr(store_module, "PAGE_SIZE", 2)
    assert list(store.read()) == [
        (0, {"big": [sampled(0, 0, arm="big")], "small": [sampled(0, 0)]}),
        (4, {"small": [scored, other]}),
    ]
    assert list(store.read(["small"], [4, 1])) == [(4, {"small": [scored, other]})]
    assert list(store.read(["big"])) == [(0, {"big": [sampled(0, 0, arm="big")]})]
    assert list(store.read(["small"], [])) == []


def test_a_sample_counts_once(tmp_path: Path) -> None:
    store = CollectionStore(tmp_path)
    store.register_questions(["a"])
    write_segment(store.segments, 0, [sampled(0, 0), score(0, 0, 0.5)])
    write_segment(store.segments, 1, [sampled(0, 0), score(0, 0, 0.5)])
    again = CollectionStore(tmp_path)
    assert again.count("small", [0], 1) == (1, 1)
    assert [len(by_arm["small"]) for _, by_arm in again.read()] == [1]
