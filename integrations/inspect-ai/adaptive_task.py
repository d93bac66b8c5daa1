"""Inspect AI: a solver that draws samples until a policy stops, and a small task that uses it.

    inspect eval adaptive_task.py --model openai-api/local/MODEL --model-base-url URL

(set LOCAL_API_KEY to the key of the server). The log has the number of samples, the rounds and the
agreement of each question in the metadata of its output, and the tokens of all samples as usage.
"""

from __future__ import annotations

import asyncio

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import Generate, Solver, TaskState, solver

import adacompute as ada


@solver
def adaptive(policy: str = "example", budget: float = 2.0) -> Solver:
    """Answer with the winning sample; ``policy`` is the directory of a bundle, or "example"."""
    estimator = ada.load_policy(policy)

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 - Inspect's
        model = get_model()
        session = estimator.start(state.input_text, budget=budget)
        outputs = []
        while request := session.ask():  # the samples of a round are drawn concurrently
            calls = [model.generate(state.messages) for _ in range(request.n)]
            outputs += await asyncio.gather(*calls)
            session.tell([one.completion for one in outputs[-request.n :]])
        state.output = outputs[session.chosen or 0]
        state.output.usage = sum((one.usage or ModelUsage() for one in outputs), ModelUsage())
        state.output.metadata = {
            "answer": session.answer,
            "samples": session.n_samples,
            "rounds": session.rounds,
            "agreement": session.agreement,
        }
        state.messages.append(state.output.message)
        return state

    return solve


@task
def sums() -> Task:
    """Ten sums."""
    dataset = [Sample(f"What is {n} + {n + 1}?", target=str(2 * n + 1)) for n in range(10)]
    return Task(dataset=dataset, solver=adaptive(), scorer=match(numeric=True))
