"""LangChain: a chat model that draws samples of another chat model until a policy stops.

    python adaptive_chat.py MODEL "What is 17 + 25?"

The address of the model is taken from OPENAI_BASE_URL, its key from OPENAI_API_KEY.
"""

from __future__ import annotations

import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import add_usage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI

import adacompute as ada


class AdaptiveChat(BaseChatModel):
    """Answers with the winning sample; ``budget`` is the mean cost per question.

    The last human message is the question. ``usage_metadata`` is the sum over all samples, and
    ``response_metadata["adacompute"]`` is the decision.
    """

    chat_model: BaseChatModel
    policy: Any
    budget: float

    @property
    def _llm_type(self) -> str:
        return "adacompute"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,  # noqa: ANN401, ARG002 - called by the base class
        **options: Any,  # noqa: ANN401 - for the model
    ) -> ChatResult:
        question = next(str(m.text) for m in reversed(messages) if isinstance(m, HumanMessage))
        session = self.policy.start(question, budget=self.budget)
        drawn: list[ChatResult] = []
        # Callbacks must see the sum alone, or they count tokens twice: this method calls none.
        draw = functools.partial(self.chat_model._generate, messages, stop, **options)  # noqa: SLF001
        with ThreadPoolExecutor(max_workers=16) as pool:
            while request := session.ask():  # the samples of a round are drawn concurrently
                calls = [pool.submit(draw) for _ in range(request.n)]
                drawn += [call.result() for call in calls]
                session.tell([as_sample(result.generations[0]) for result in drawn[-request.n :]])
        chosen = session.chosen or 0
        replies = [result.generations[0].message for result in drawn]
        usage = functools.reduce(add_usage, (reply.usage_metadata for reply in replies), None)
        decision = {
            "answer": session.answer,
            "samples": session.n_samples,
            "agreement": session.agreement,
            "cost": {"samples": session.n_samples, "tokens": usage["total_tokens"]},
        }
        message = AIMessage(replies[chosen].content, usage_metadata=usage)
        message.response_metadata = {"adacompute": decision}
        output = dict(drawn[chosen].llm_output or {}, token_usage=None)  # as usage_metadata
        return ChatResult(generations=[ChatGeneration(message=message)], llm_output=output)


def as_sample(generation: ChatGeneration) -> ada.Sample:
    """Return a reply as a sample, with its log-probability if the server reported one."""
    tokens = ((generation.generation_info or {}).get("logprobs") or {}).get("content") or []
    mean = sum(token["logprob"] for token in tokens) / len(tokens) if tokens else None
    return ada.Sample(str(generation.text), mean_logprob=mean)


if __name__ == "__main__":
    name, text = sys.argv[1:]
    model = ChatOpenAI(model=name, temperature=0.7)
    chat = AdaptiveChat(chat_model=model, policy=ada.load_policy("example"), budget=2.0)
    answer = chat.invoke(text)
    print(answer.text, answer.response_metadata["adacompute"], answer.usage_metadata, sep="\n")
