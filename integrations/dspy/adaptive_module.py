"""DSPy: a module that draws predictions of a signature until a policy stops, and votes on a field.

    python adaptive_module.py openai/MODEL "What is 17 + 25?"

The address of the model is taken from OPENAI_BASE_URL, its key from OPENAI_API_KEY.
"""

from __future__ import annotations

import sys
from typing import Any

import dspy

import adacompute as ada


class AdaptivePredict(dspy.Module):
    """Predicts a signature with as many samples as are worth their price.

    The ``policy`` decides by the input field ``question_field`` and the answers so far, which are
    the values of the output field ``vote_field``. The prediction is the first one with the winning
    answer; ``n_samples`` and ``agreement`` are added to it.
    """

    def __init__(
        self,
        signature: str | type[dspy.Signature],
        *,
        policy: ada.Estimator,
        budget: float,
        temperature: float = 0.7,
        vote_field: str = "answer",
        question_field: str = "question",
    ) -> None:
        super().__init__()
        self.predict = dspy.ChainOfThought(signature)
        self.policy, self.budget, self.temperature = policy, budget, temperature
        self.vote_field, self.question_field = vote_field, question_field

    def forward(self, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - fields of the signature
        """Ask the policy how many predictions it wants, draw them, and vote."""
        session = self.policy.start(inputs[self.question_field], budget=self.budget)
        drawn: list[dspy.Prediction] = []
        while request := session.ask():
            for _ in range(request.n):
                # Another rollout_id is another sample: the cache would return the same one.
                config = {"rollout_id": len(drawn), "temperature": self.temperature}
                drawn.append(self.predict(**inputs, config=config))
            session.tell([str(one[self.vote_field]) for one in drawn[-request.n :]])
        chosen = drawn[session.chosen or 0]
        return dspy.Prediction(
            **chosen.toDict(), n_samples=session.n_samples, agreement=session.agreement
        )


if __name__ == "__main__":
    model, text = sys.argv[1:]
    dspy.configure(lm=dspy.LM(model), track_usage=True)
    solve = AdaptivePredict("question -> answer", policy=ada.load_policy("example"), budget=2.0)
    prediction = solve(question=text)
    print(prediction, prediction.get_lm_usage())
