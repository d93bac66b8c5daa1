"""Shared pacing: one mean cost that several replicas hold together.

Each replica counts the questions that it settled and what they cost. Through a register it tells
the others, learns their counts, and takes over the state of the pacer that has seen more settled
questions. Between two exchanges it paces with its own latest counts and the others' last ones.
Counts only grow, so they are merged by their maximum; a register that lost them gets them again
from every replica. It knows nothing of questions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from adacompute.spending.pacing import Counters, Pacer, PacingState
from adacompute.spending.registers import Reading, Register, read_value, update

HALF_LIFE = 2_000
"""Settled questions after which a delay that was seen counts half.

The gain follows the delay, and is the same for all replicas. If it changed as fast as the traffic,
it could be larger while questions cost too much than while they cost too little, and the mean cost
would stay below the target.
"""

Row = tuple[int, float, int]
"""Settled questions of a replica, what they cost, and the most that were in flight lately."""

_NO_ROW: Row = (0, 0.0, 0)


@dataclass(frozen=True)
class _Shared:
    """What the register holds: the row of each replica, the latest state, and the delay.

    ``in_flight`` is the most that was in flight in all replicas, and ``unseen`` the mean number of
    questions that others settle between two exchanges of one replica.
    """

    rows: Mapping[str, Row] = field(default_factory=dict)
    state: PacingState | None = None
    in_flight: float = 0.0
    unseen: float = 0.0

    @staticmethod
    def from_json(text: str | None) -> _Shared:
        return _Shared() if text is None else read_value(text, _Shared._build, "a shared pacer")

    @staticmethod
    def _build(found: Any) -> _Shared:  # noqa: ANN401 - JSON of others
        rows = {name: (int(a), float(b), int(c)) for name, (a, b, c) in found["rows"].items()}
        state = found["state"]
        state = None if state is None else PacingState.from_json(state)
        return _Shared(rows, state, float(found["in_flight"]), float(found["unseen"]))

    def to_json(self) -> str:
        state = None if self.state is None else self.state.to_json()
        return json.dumps({**vars(self), "state": state}, separators=(",", ":"))

    @property
    def n_settled(self) -> int:
        """Settled questions of all replicas."""
        return sum(row[0] for row in self.rows.values())

    @property
    def delay(self) -> int:
        """How many questions get a price before the cost of one is known to all replicas."""
        return round(self.in_flight + self.unseen)

    def adjust(self, before: _Shared, in_flight: int, n_unseen: int) -> _Shared:
        """Adjust the delay to what a replica measured; more in flight counts at once."""
        n_new = max(0, self.n_settled - before.n_settled)
        kept = 0.5 ** (n_new / HALF_LIFE)
        weight = max(1 - kept, n_new / max(1, self.n_settled))
        return replace(
            self,
            in_flight=round(max(in_flight, before.in_flight * kept), 2),
            unseen=round(before.unseen + weight * (n_unseen - before.unseen), 2),
        )


class SharedPacer:
    """The pacer of one mean cost in one replica.

    ``key`` names the mean in the register, and ``replica`` this process. A process that takes the
    place of another may use its name: the counts continue.

    >>> from adacompute.spending.pacing import PriceCurve
    >>> pacer = Pacer(PriceCurve((1.0, 2.0, 4.0), (0.4, 0.1, 0.025)), max_cost=16)
    >>> shared = SharedPacer("model", "replica", pacer, 2.0)
    >>> shared.budget()
    2.0
    >>> shared.begin(); shared.settle(8.0); shared.budget() < 2.0
    True
    """

    def __init__(self, key: str, replica: str, pacer: Pacer, target: float) -> None:
        self.key = key
        self.target = target
        self._pacer = pacer
        self._replica = replica
        self._others: dict[str, Row] = {}
        self._is_known = False
        self._settled = 0
        self._spent = 0.0
        self._in_flight = self._peak = 0
        self._state = pacer.start(target)

    @property
    def state(self) -> PacingState:
        """The state of the account, with everything that this replica knows."""
        self._state = self._pacer.advance(self._state, self._counters(), self.target)
        return self._state

    @property
    def mean_cost(self) -> float:
        """Mean cost of all settled questions of all replicas; NaN before the first."""
        counters = self._counters()
        return counters.spent / counters.settled if counters.settled else math.nan

    def budget(self) -> float:
        """Return the budget whose price the next question gets."""
        return self._pacer.budget(self.state)

    def begin(self) -> None:
        """Count a question that got its price here."""
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)

    def cancel(self) -> None:
        """Forget a question that got its price here and was not answered."""
        self._in_flight -= 1

    def settle(self, cost: float) -> None:
        """Count a question that got its price here, and what it cost in the end."""
        self._in_flight -= 1
        self._settled += 1
        self._spent += cost

    async def exchange(self, register: Register) -> None:
        """Tell the other replicas what was settled here, and learn what they settled."""
        before = dict(self._others)

        def change(reading: Reading) -> tuple[str, int]:
            stored = _Shared.from_json(reading.value)
            self._learn(stored)
            rows = {**self._others, self._replica: (self._settled, self._spent, self._peak)}
            in_flight, n_unseen = self._measure_delay(before)
            shared = _Shared(rows, self.state).adjust(stored, in_flight, n_unseen)
            return shared.to_json(), shared.delay

        delay = await update(register, self.key, change, durable=False)
        self._peak = self._in_flight
        if delay != self._pacer.max_in_flight:
            self._pacer = replace(self._pacer, max_in_flight=delay)

    def _measure_delay(self, before: Mapping[str, Row]) -> tuple[int, int]:
        """Return the questions in flight everywhere, and those that others have settled.

        ``before`` are the rows of others at the last exchange; those that settled nothing since
        then are idle or gone.
        """
        in_flight, n_unseen = self._peak, 0
        for name, row in self._others.items():
            if (n_settled := row[0] - before.get(name, _NO_ROW)[0]) > 0:
                in_flight += row[2]
                n_unseen += n_settled
        return in_flight, n_unseen

    def _learn(self, shared: _Shared) -> None:
        """Merge the rows of others, and take over a state that is later than the own one."""
        if not self._is_known and self._replica in shared.rows:
            settled, spent, _ = shared.rows[self._replica]
            self._settled += settled
            self._spent += spent
        self._is_known = True
        for name, row in shared.rows.items():
            if name != self._replica:
                known = self._others.get(name, _NO_ROW)
                self._others[name] = max(known, row)
        if shared.state is not None and shared.state.settled > self._state.settled:
            self._state = shared.state

    def _counters(self) -> Counters:
        settled = self._settled + sum(row[0] for row in self._others.values())
        spent = self._spent + sum(row[1] for row in self._others.values())
        return Counters(settled, settled, spent)
