"""Arm settings: how each arm of a policy is sampled.

An arm is a model with its settings and its prompt. A request that a client wrote for one model
becomes a sample of an arm by a few edits: the model's name, the fields that the arm sets, and the
prompt where arms have different ones. This module does not send anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adacompute.models.messages import Prompt, Settings
from adacompute.models.templates import Template
from adacompute.policies.spec import read_entry, read_number

SHARED_FIELDS = ("temperature", "top_p", "max_tokens", "stop")
"""Settings that a client chooses, unless the arms differ in them."""


@dataclass(frozen=True)
class ArmSettings:
    """How one arm is sampled; the template and the settings are None where they are not known."""

    name: str
    model: str
    template: Template | None = None
    settings: Settings | None = None


def to_json(arms: Sequence[ArmSettings]) -> list[dict[str, Any]]:
    """Return arms as JSON values."""
    return [asdict(arm) for arm in arms]


def from_json(content: Sequence[Mapping[str, Any]]) -> tuple[ArmSettings, ...]:
    """Build arms from JSON values."""
    return tuple(
        ArmSettings(
            name=read_entry(one, "name", str),
            model=read_entry(one, "model", str),
            template=None if one["template"] is None else read_template(one["template"]),
            settings=None if one["settings"] is None else read_settings(one["settings"]),
        )
        for one in content
    )


@dataclass(frozen=True)
class ArmEdits:
    """What turns a request into a sample of an arm: its model, and fields of the body."""

    model: str
    fields: Mapping[str, Any]


def edit_request(
    arms: Sequence[ArmSettings], question: str | None, *, is_chat: bool, is_response: bool = False
) -> dict[str, ArmEdits]:
    """Return the edits of each arm, for a request about a question.

    The prompt changes only where arms have different templates and the question is known. With
    ``is_response``, the fields are those of the Responses API.
    """
    own_prompts = question is not None and len({arm.template for arm in arms}) > 1
    found = {}
    for arm in arms:
        fields = _settings_fields(arm, arms)
        if own_prompts and question is not None and arm.template is not None:
            prompt = arm.template.render(question)
            if is_chat and prompt.messages is not None:
                fields["messages"] = list(prompt.messages)
            elif not is_chat and prompt.text is not None:
                fields["prompt"] = prompt.text
        found[arm.name] = ArmEdits(arm.model, _as_response(fields) if is_response else fields)
    return found


def find_question(arms: Sequence[ArmSettings], prompt: Prompt) -> str | None:
    """Return the question of a prompt in the format of an arm; None if no format fits.

    If several fit, it is the shortest: a format that is the question alone fits every prompt.
    """
    templates = {arm.template for arm in arms if arm.template is not None}
    found = (template.extract_question(prompt) for template in templates)
    return min((one for one in found if one is not None), key=len, default=None)


def _settings_fields(arm: ArmSettings, arms: Sequence[ArmSettings]) -> dict[str, Any]:
    """Return the request fields that an arm sets."""
    own = arm.settings
    if own is None:
        return {}
    fields: dict[str, Any] = {} if own.effort is None else {"reasoning_effort": own.effort}
    for name in SHARED_FIELDS:
        values = [None if one.settings is None else getattr(one.settings, name) for one in arms]
        value = getattr(own, name)
        if any(other != value for other in values) and value not in (None, ()):
            fields[name] = list(value) if isinstance(value, tuple) else value
    return fields | dict(own.extra)


def _as_response(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat as those of the Responses API."""
    names = {"messages": "input", "max_tokens": "max_output_tokens"}
    found = {names.get(name, name): value for name, value in fields.items()}
    effort = found.pop("reasoning_effort", None)
    return found if effort is None else {**found, "reasoning": {"effort": effort}}


def read_template(content: Mapping[str, Any]) -> Template:
    """Read a template from its JSON object."""
    if not isinstance(content["chat"], bool):
        raise TypeError("chat must be true or false")
    return Template(
        form=read_entry(content, "form", str),
        system=read_entry(content, "system", str | None),
        few_shot=tuple((str(question), str(answer)) for question, answer in content["few_shot"]),
        chat=content["chat"],
    )


def read_settings(content: Mapping[str, Any]) -> Settings:
    """Read sampling settings from their JSON object."""
    if not isinstance(content["logprobs"], bool):
        raise TypeError("logprobs must be true or false")
    top_p = content["top_p"]
    return Settings(
        temperature=read_number(content["temperature"]),
        top_p=None if top_p is None else read_number(top_p),
        max_tokens=read_entry(content, "max_tokens", int | None),
        stop=tuple(str(text) for text in read_entry(content, "stop", list | tuple)),
        effort=read_entry(content, "effort", str | None),
        logprobs=content["logprobs"],
        extra=read_entry(content, "extra", dict),
    )
