"""Fake responses: answers of the fake upstream in the format of OpenAI's Responses API.

A response has one message, and a reasoning item before it if the fake reasons. The events of a
stream are those that OpenAI sends for such a response. This module does no networking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adacompute.testing.fake_answers import FakeRequest, describe_logprobs
from adacompute.testing.fake_usage import MIDDLE, break_usage

__all__ = ["FakeResponseRequest", "chat_members"]


def chat_members(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a chat request that asks the same; KeyError if there is no input."""
    found = {name: value for name, value in body.items() if name not in {"input", "include"}}
    found["messages"] = [body.get("instructions"), body["input"]]
    found["max_tokens"] = body.get("max_output_tokens")
    found["logprobs"] = "message.output_text.logprobs" in (body.get("include") or ())
    return found


@dataclass
class FakeResponseRequest(FakeRequest):
    """A request to the responses endpoint, which always has one choice."""

    model: str = "fake"

    @property
    def id(self) -> str:
        """Id of the response, which depends on its seed."""
        return f"resp_{self.seeds[0]}"

    def document(self, usage: str) -> dict[str, Any]:
        """The whole response."""
        is_cut = self.finish_reason == "length"
        return {
            **self._head("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [*self._reasoning(), self._message(self._content())],
            "usage": None if usage in {"none", MIDDLE} else self.response_usage(usage),
        }

    def response_usage(self, counts: str) -> Any:  # noqa: ANN401 - broken in any way
        """The ``usage`` object in the names of the Responses API."""
        chat = self.usage("all")
        counted = {
            "input_tokens": chat["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": chat["completion_tokens"],
            "output_tokens_details": chat["completion_tokens_details"],
            "total_tokens": chat["total_tokens"],
        }
        return break_usage(counted, counts)

    def events(self, usage: str) -> Iterator[tuple[bool, dict[str, Any]]]:
        """The response as stream events, each with whether it carries a token."""
        for number, (is_token, event) in enumerate(self._events(usage)):
            yield is_token, {**event, "sequence_number": number}

    def encode_event(self, event: Mapping[str, Any]) -> bytes:
        """Write an event with its type in a line of its own."""
        return b"event: %b\n" % event["type"].encode() + super().encode_event(event)

    @property
    def end(self) -> bytes:
        """What follows the last event: nothing."""
        return b""

    def _events(self, usage: str) -> Iterator[tuple[bool, dict[str, Any]]]:
        begun = {**self._head("in_progress"), "incomplete_details": None, "output": []}
        yield False, {"type": "response.created", "response": {**begun, "usage": None}}
        one = {"input_tokens": len(self.prompt.split()), "output_tokens": 1}
        first = one if usage == MIDDLE else None
        yield False, {"type": "response.in_progress", "response": {**begun, "usage": first}}
        reasoning = self._reasoning()
        for item in reasoning:
            place = {"output_index": 0}
            yield False, {"type": "response.output_item.added", **place, "item": item}
            delta = {**place, "item_id": item["id"], "summary_index": 0, "delta": ""}
            for _ in range(min(self.reasoning_tokens, self.tokens)):
                yield True, {"type": "response.reasoning_summary_text.delta", **delta}
            yield False, {"type": "response.output_item.done", **place, "item": item}
        at_item = {"output_index": len(reasoning)}
        at_part = {**at_item, "item_id": f"msg_{self.seeds[0]}", "content_index": 0}
        opened = {**self._message([]), "status": "in_progress"}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield False, {"type": "response.output_item.added", **at_item, "item": opened}
        yield False, {"type": "response.content_part.added", **at_part, "part": empty}
        (part,) = self._content()
        for i, word in enumerate(self.words(self.seeds[0])):
            delta = {"delta": word, "logprobs": part["logprobs"][i : i + 1]}
            yield True, {"type": "response.output_text.delta", **at_part, **delta}
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield False, {"type": "response.output_text.done", **at_part, **done}
        yield False, {"type": "response.content_part.done", **at_part, "part": part}
        item = self._message([part])
        yield False, {"type": "response.output_item.done", **at_item, "item": item}
        document = self.document(usage)
        yield False, {"type": f"response.{document['status']}", "response": document}

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
        }

    def _message(self, content: list[Any]) -> dict[str, Any]:
        head = {"id": f"msg_{self.seeds[0]}", "type": "message", "role": "assistant"}
        status = "incomplete" if self.finish_reason == "length" else "completed"
        return {**head, "status": status, "content": content}

    def _reasoning(self) -> list[dict[str, Any]]:
        item = {"id": f"rs_{self.seeds[0]}", "type": "reasoning", "summary": []}
        return [item] if self.reasoning_tokens else []

    def _content(self) -> list[dict[str, Any]]:
        words = self.words(self.seeds[0])
        text = {"type": "output_text", "text": "".join(words), "annotations": []}
        if not self.logprobs:
            return [{**text, "logprobs": []}]
        found = describe_logprobs(words, chat=True, top_logprobs=self.top_logprobs)
        listed = [{"bytes": [], "top_logprobs": [], **token} for token in found["content"]]
        for token in listed:
            token["top_logprobs"] = [{"bytes": [], **one} for one in token["top_logprobs"]]
        return [{**text, "logprobs": listed}]
