"""Feedback: what clients say of the answers they got, whether they were right.

A grade is checked, compared with the decision if this host knows it, written beside the decision
log and counted. What clients send is a selection: the precision that is observed is theirs, not
that of all answers. It does not know how requests arrive.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.evidence import measure_evidence
from adacompute.gateway.accounting.metrics import EVIDENCE, Metrics
from adacompute.gateway.connection.exchange import JSON, Exchange
from adacompute.gateway.requests.refusals import BadRequest, Forbidden
from adacompute.models.formats.body import Body, InvalidBody
from adacompute.storage.grades import Grade, append_grade, find_decision

if TYPE_CHECKING:
    from adacompute.gateway.voting.engine import Engine

PATH = "/adacompute/feedback"
MAX_BYTES, MAX_ANSWER = 65_536, 10_000
"""Bytes of a body of feedback, and characters of an answer in it."""

MAX_COUNTED = 100_000
"""Decisions that are remembered as counted, so that a grade that is replaced counts once."""

ACCEPTED = 202
_ID = re.compile(r"[0-9a-f]{18}")
SURE = {True: "yes", False: "no", None: "not judged"}
"""Whether an answer is one of those whose precision is guaranteed, in headers and metrics."""


class Feedback:
    """Takes grades of the decisions in a directory; None if decisions are not logged."""

    def __init__(
        self, directory: Path | None, engines: Mapping[str, Engine], metrics: Metrics
    ) -> None:
        self._directory, self._engines, self._metrics = directory, engines, metrics
        self._counted: dict[str, None] = {}
        self._sure: dict[str, list[int]] = {}

    async def serve(self, exchange: Exchange, body: bytes) -> None:
        """Take the grade in a body, or raise an error for the client."""
        try:
            found = await self._accept(exchange.client, body)
        except OSError as error:
            exchange.error = str(error)
            exchange.error_code = "grade_not_written"
            self._metrics.count("rejected_requests_total", exchange.error_code)
            message = "the grade could not be written: send it again later"
            await exchange.fail(503, message, "server_error", code="grade_not_written")
            return
        await exchange.reply(ACCEPTED, [JSON], json.dumps(found).encode())

    async def _accept(self, client: str, body: bytes) -> dict[str, Any]:
        if self._directory is None:
            raise Forbidden("decisions are not logged, so none can be graded", "no_decision_log")
        grade = _read(client, body)
        decision = await asyncio.to_thread(find_decision, self._directory, grade.id)
        if decision is not None and decision.get("client") != client:
            raise BadRequest("there is no such decision", "id")
        correct = await asyncio.to_thread(self._judge, grade, decision)
        grade = replace(grade, correct=correct)
        await asyncio.to_thread(append_grade, self._directory, grade)
        if decision is not None and correct is not None:
            self._count(decision, correct=correct)
        return {"id": grade.id, "correct": correct}

    def _judge(self, grade: Grade, decision: Mapping[str, Any] | None) -> bool | None:
        """Return whether the answer of a decision is right; None if that is not known yet."""
        if grade.answer is None or decision is None:
            return grade.correct
        engine, chosen = self._engines.get(decision["model"]), decision["chosen"]
        if engine is None or chosen is None or not 0 <= chosen < len(decision["samples"]):
            return None if engine is None else False
        answer = decision["samples"][chosen]["answer"]
        grader = engine.virtual.grader
        known = grader.extract(grade.answer) or grade.answer
        return answer is not None and (answer == known or grader.equal(answer, known))

    def _count(self, decision: Mapping[str, Any], *, correct: bool) -> None:
        """Count a graded answer once, and show the evidence against the guarantee."""
        number, model, sure = decision["id"], decision["model"], decision.get("sure")
        if number in self._counted:
            return
        self._counted[number] = None
        if len(self._counted) > MAX_COUNTED:
            del self._counted[next(iter(self._counted))]
        labels = (model, SURE[sure], "yes" if correct else "no")
        self._metrics.count("feedback_total", *labels)
        engine = self._engines.get(model)
        target = None if engine is None else engine.virtual.bundle.min_precision
        if sure and engine is not None and target is not None:
            engine.fallback.count_grade(correct=correct)
            counts = self._sure.setdefault(model, [0, 0])
            counts[not correct] += 1
            evidence = measure_evidence(counts[0], counts[1], target)
            self._metrics.set_gauge(EVIDENCE, model, evidence)


def _read(client: str, body: bytes) -> Grade:
    """Return the grade in a body."""
    try:
        parsed = Body.parse(body)
    except InvalidBody as error:
        raise BadRequest(str(error), error.field) from None
    fields = {} if parsed is None else dict(parsed.fields)
    number, correct, answer = (fields.pop(name, None) for name in ("id", "correct", "answer"))
    if fields:
        raise BadRequest("feedback has the fields id and correct, or id and answer", min(fields))
    if not isinstance(number, str) or not _ID.fullmatch(number):
        raise BadRequest("id must be that of the header x-adacompute-decision", "id")
    if (correct is None) == (answer is None):
        raise BadRequest("give either correct (true or false) or the right answer", "correct")
    if correct is not None and not isinstance(correct, bool):
        raise BadRequest("correct must be true or false", "correct")
    if answer is not None and not (isinstance(answer, str) and len(answer) <= MAX_ANSWER):
        raise BadRequest(f"answer must be a text of at most {MAX_ANSWER} characters", "answer")
    return Grade(number, client, correct, answer, time.time())
