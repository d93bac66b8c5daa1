"""Addresses: which server gets a request, and when one is passed over and tried again."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from adacompute.core.errors import ConfigError
from adacompute.models.connection.addresses import (
    MAX_FAILURES,
    MAX_MESSAGE_ELEMENTS,
    MAX_PARSED_BYTES,
    MAX_PAUSE_S,
    PAUSE_S,
    PREFIX_BYTES,
    SPARE_LOAD,
    Addresses,
    prompt_key,
)

URLS = [f"http://10.0.0.{i}:8000/v1" for i in range(4)]


class Several:
    """Addresses with a clock of their own, and what they said."""

    def __init__(self, n: int = 4) -> None:
        self.now = 100.0
        self.events: list[tuple[str, str]] = []
        self.addresses = Addresses(
            URLS[:n],
            on_event=lambda event, name: self.events.append((event, name)),
            clock=lambda: self.now,
        )


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m", **members}).encode()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_loss_of_an_address_moves_only_its_share() -> None:
    all_four, without = Addresses(URLS), Addresses(URLS[1:])
    before = {key: all_four.choose(key).url for key in range(2000)}
    assert all(400 < count < 600 for count in Counter(before.values()).values())
    kept = [key for key, url in before.items() if url != URLS[0]]
    assert all(without.choose(key).url == before[key] for key in kept)
    moved = Counter(without.choose(key).url for key in before.keys() - set(kept))
    assert len(moved) == 3


def test_an_address_without_connection_is_passed_over_then_tried_by_one_request() -> None:
    several = Several()
    addresses = several.addresses
    first, second, *_ = addresses.order(7)
    addresses.record_failure(first, is_unsent=True)
    assert addresses.choose(7) is second
    several.now += PAUSE_S
    assert [addresses.choose(7) for _ in range(2)] == [first, second]  # one trial at a time
    first.record_answer()
    assert addresses.choose(7) is first
    assert several.events == [("failed", first.name), ("skipped", first.name), ("back", first.name)]


def test_trials_that_fail_become_rarer() -> None:
    several = Several()
    addresses = several.addresses
    first = addresses.order(7)[0]
    addresses.record_failure(first, is_unsent=True)
    pauses = []
    for _ in range(6):
        start = several.now
        while addresses.choose(7) is not first:
            several.now += 0.5
        pauses.append(several.now - start)
        addresses.record_failure(first, is_unsent=True)
    assert pauses == [2, 4, 8, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]


def test_errors_of_a_server_pass_over_it_after_several_in_a_row() -> None:
    addresses = Several().addresses
    first, second, *_ = addresses.order(7)
    for _ in range(MAX_FAILURES - 1):
        addresses.record_failure(first)
    assert addresses.choose(7) is first
    first.record_answer()
    addresses.record_failure(first)
    assert addresses.choose(7) is first  # they are counted from the last answer
    for _ in range(MAX_FAILURES - 1):
        addresses.record_failure(first)
    assert addresses.choose(7) is second
    first.record_answer()  # to a request that was sent before
    assert addresses.choose(7) is second


def test_if_all_fail_each_is_still_asked() -> None:
    addresses = Several(2).addresses
    first, second = addresses.order(7)
    for one in (first, second):
        addresses.record_failure(one, is_unsent=True)
    assert addresses.choose(7) is first
    assert addresses.choose(7, tried=[first]) is second
    assert addresses.has_another([first])
    assert not addresses.has_another([first, second, first])


def test_an_address_with_many_more_open_requests_is_relieved() -> None:
    addresses = Several(2).addresses
    first, second = addresses.order(7)
    opened = Counter[str]()
    for _ in range(SPARE_LOAD + 1):
        addresses.choose(7).__enter__()
    assert (first.n_open, second.n_open) == (SPARE_LOAD + 1, 0)
    for _ in range(200):
        chosen = addresses.choose(7)
        chosen.__enter__()
        opened[chosen.url] += 1
    assert first.n_open < 1.25 * (first.n_open + second.n_open) / 2 + SPARE_LOAD + 1
    assert second.n_open > 60


def test_the_only_address_is_never_passed_over() -> None:
    several = Several(1)
    only = several.addresses.all[0]
    for _ in range(10):
        several.addresses.record_failure(only, is_unsent=True)
        assert several.addresses.choose(several.addresses.key_of(b"{}")) is only
    assert several.events == [("failed", only.name)] * 10
    assert not several.addresses.has_another([only])


def test_a_conversation_stays_where_it_began() -> None:
    system = {"role": "system", "content": "Be brief."}
    first = [system, user("Who are you?")]
    later = [*first, {"content": "A model.", "role": "assistant"}, user("Of whom?")]
    key = prompt_key(body(messages=first))
    assert prompt_key(body(messages=later, temperature=0.5, seed=3)) == key
    assert prompt_key(body(messages=[system, user("What is this?")])) != key
    assert prompt_key(body(input=first)) == prompt_key(body(input=later))


def test_texts_go_by_their_first_bytes() -> None:
    text = "x" * PREFIX_BYTES
    assert prompt_key(body(prompt=text + "a")) == prompt_key(body(prompt=text + "b"))
    assert prompt_key(body(prompt="a")) != prompt_key(body(prompt="b"))
    assert prompt_key(body(prompt=[1, 2])) != prompt_key(body(prompt=[1, 3]))
    assert prompt_key(b"--boundary") != prompt_key(b"")


def test_large_bodies_go_by_their_first_bytes() -> None:
    text = "x" * MAX_PARSED_BYTES
    asked = [body(messages=[user("a"), user(text + end)]) for end in "ab"]
    assert prompt_key(asked[0]) == prompt_key(asked[1])
    assert prompt_key(asked[0]) != prompt_key(body(messages=[user("a"), user("y" + text)]))
    many = [body(messages=[{}] * (MAX_MESSAGE_ELEMENTS + more)) for more in (0, 100)]
    assert prompt_key(many[0]) == prompt_key(many[1])


def test_addresses_must_be_given_once() -> None:
    with pytest.raises(ConfigError, match=r"base_urls has http://a/v1 twice"):
        Addresses(["http://a/v1", "http://a/v1/"])
    with pytest.raises(ConfigError, match="empty"):
        Addresses([])
