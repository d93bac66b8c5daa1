"""Diagrams: the pictures of the pipeline, of the gateway and of a batch.

Run it with ``python -m scripts.draw_diagrams`` after a change here. A page shows a diagram with
``![text](../_static/NAME.svg)``. ``scripts/svg_theme.py`` says how one file serves light and dark
mode.

All diagrams are 480 units wide and no text is smaller than 15 units, so it is 11 pixels high on a
phone of 390 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from scripts.svg_theme import write_svg

OUT = Path(__file__).resolve().parent.parent / "docs" / "_static"
WIDTH, SHOWN = 480, 520
LEFT, RIGHT = 16, WIDTH - 16
MIDDLE = WIDTH / 2
LINE_HEIGHT, PADDING, GAP = 20, 11, 30
"""Height of a line of text, space above and below it in a box, and length of an arrow."""

CSS = """text{font-size:15px;fill:var(--soft);text-anchor:middle}
.head{font-size:16px;font-weight:650;fill:var(--ink)}
.note{font-size:15px;fill:var(--soft)}
.box{fill:var(--wash);stroke:var(--edge);stroke-width:1.25}
.key{fill:var(--tint);stroke:var(--accent);stroke-width:1.75}
.frame{fill:none;stroke:var(--edge);stroke-width:1.25;stroke-dasharray:5 4}
.arrow{fill:none;stroke:var(--edge);stroke-width:1.75;stroke-linejoin:round}
.tip{fill:var(--edge)}
"""


@dataclass(frozen=True)
class Box:
    """A rectangle on the canvas, and where arrows may touch it."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> float:
        """The horizontal centre."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The vertical centre."""
        return self.y + self.height / 2


@dataclass
class Canvas:
    """Shapes of a diagram, in the order in which they are drawn."""

    parts: list[str] = field(default_factory=list)

    def box(
        self,
        y: float,
        head: str,
        *lines: str,
        x: float = LEFT,
        width: float = RIGHT - LEFT,
        height: float = 0,
        kind: str = "box",
    ) -> Box:
        """Draw a box with a heading and lines of text, and return it."""
        texts = [head, *lines]
        needed = PADDING * 2 + LINE_HEIGHT * len(texts)
        found = Box(x, y, width, max(needed, height))
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}"'
            f' height="{found.height:g}" rx="8"/>'
        )
        top = y + (found.height - LINE_HEIGHT * len(texts)) / 2 + 15
        for i, text in enumerate(texts):
            self.text(found.centre, top + i * LINE_HEIGHT, text, kind="" if i else "head")
        return found

    def row(self, y: float, *columns: tuple[str, ...], kind: str = "box") -> list[Box]:
        """Draw boxes of equal size beside each other."""
        space = 14
        width = (RIGHT - LEFT - space * (len(columns) - 1)) / len(columns)
        height = PADDING * 2 + LINE_HEIGHT * max(map(len, columns))
        return [
            self.box(y, *texts, x=LEFT + i * (width + space), width=width, height=height, kind=kind)
            for i, texts in enumerate(columns)
        ]

    def text(self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "") -> None:
        """Write a line of text, centred at x unless another anchor is given."""
        style = f' style="text-anchor:{anchor}"' if anchor else ""
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text{name} x="{x:g}" y="{y:g}"{style}>{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        """Draw straight lines through the points, with a tip at the end or at both ends."""
        path = list(points)
        path[-1] = self._tip(points[-2], points[-1])
        if both:
            path[0] = self._tip(points[1], points[0])
        line = " L ".join(f"{x:g} {y:g}" for x, y in path)
        self.parts.append(f'<path class="arrow" d="M {line}"/>')

    def down(self, upper: Box, lower: Box, x: float | None = None) -> None:
        """Draw an arrow from a box to the one below it."""
        place = lower.centre if x is None else x
        self.arrow((place, upper.bottom), (place, lower.y))

    def frame(self, y: float, height: float) -> None:
        """Draw a dashed frame of full width."""
        self.parts.append(
            f'<rect class="frame" x="{LEFT}" y="{y:g}" width="{RIGHT - LEFT}"'
            f' height="{height:g}" rx="10"/>'
        )

    def _tip(self, start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
        """Draw the tip of an arrow and return where its line ends."""
        (x0, y0), (x, y) = start, end
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        bx, by = x - 9 * dx, y - 9 * dy
        corners = ((x, y), (bx + 5 * dy, by + 5 * dx), (bx - 5 * dy, by - 5 * dx))
        shape = " ".join(f"{a:g},{b:g}" for a, b in corners)
        self.parts.append(f'<polygon class="tip" points="{shape}"/>')
        return bx, by


def write(canvas: Canvas, height: float, title: str, description: str) -> str:
    """Return a diagram as an SVG document."""
    return write_svg(
        "\n".join(canvas.parts),
        size=(WIDTH, height),
        shown=SHOWN,
        title=title,
        description=description,
        css=CSS,
    )


def draw_pipeline() -> str:
    """From recorded samples to a policy in use."""
    canvas = Canvas()
    samples = canvas.box(16, "Samples", "several responses per question, recorded or collected")
    measure = canvas.box(
        samples.bottom + GAP, "Measure", "how each question responds to more samples"
    )
    solve = canvas.box(
        measure.bottom + GAP,
        "Solve",
        "the best allocation of the budget: a price,",
        "a level per question, and a bound for comparison",
        kind="key",
    )
    learn = canvas.box(
        solve.bottom + GAP, "Learn", "a policy that decides alike without gold answers", kind="key"
    )
    calibrate = canvas.box(
        learn.bottom + GAP, "Calibrate", "the price of your budget, on held-out questions"
    )
    chain = (samples, measure, solve, learn, calibrate)
    for upper, lower in pairwise(chain):
        canvas.down(upper, lower)
    verdict = canvas.box(
        calibrate.bottom + GAP,
        "Verdict and bundle",
        "gain, no gain or inconclusive; the policy as files",
        kind="key",
    )
    canvas.down(calibrate, verdict)
    users = canvas.row(
        verdict.bottom + GAP,
        ("Gateway", "OpenAI format"),
        ("Python", "your own client"),
        ("Batch", "a file, a total"),
    )
    for user in users:
        canvas.down(verdict, user)
    return write(
        canvas,
        users[0].bottom + 16,
        "From samples to a policy in use",
        "From samples it is measured how each question responds to more of them. Solve finds the"
        " best allocation of the budget, with its price and a bound. Learn fits a policy that"
        " decides alike without gold answers. It is calibrated on held-out questions. The result"
        " is a verdict and a bundle, deployed by the gateway, Python or batch.",
    )


def draw_gateway() -> str:
    """Gateways on several hosts and what they share."""
    canvas = Canvas()
    clients = canvas.box(16, "Clients", "any OpenAI client; only the base URL changes")
    balancer = canvas.box(clients.bottom + GAP, "Load balancer", "ends TLS, checks /ready")
    canvas.down(clients, balancer)
    top = balancer.bottom + GAP
    replicas = canvas.row(
        top,
        ("Gateway, host 1", "several workers", "the same bundle"),
        ("Gateway, host 2", "several workers", "the same bundle"),
        kind="key",
    )
    for replica in replicas:
        canvas.down(balancer, replica)
    bus = replicas[0].bottom + GAP
    models = canvas.box(bus, "Model servers", "the upstreams: vLLM, llama.cpp, a hosted API")
    for replica in replicas:
        canvas.arrow((replica.centre, replica.bottom), (replica.centre, models.y), both=True)
    note = models.bottom + 34
    canvas.text(MIDDLE, note, "What every gateway reads or writes beside the requests", kind="note")
    stores = canvas.row(
        note + 16,
        ("Store of accounts", "caps and held budgets;", "SQLite on one host,", "Redis for several"),
        ("Decision log", "one row per decision,", "JSON lines, then", "Parquet"),
    )
    metrics = canvas.box(stores[0].bottom + 14, "Prometheus", "reads /metrics; a Grafana dashboard")
    return write(
        canvas,
        metrics.bottom + 16,
        "The gateway in production",
        "Clients reach gateways on several hosts through a load balancer. Each gateway has several"
        " workers and calls the model servers. Gateways share a store of accounts for caps and held"
        " budgets, SQLite on one host or Redis for several, write a decision log, and show metrics"
        " to Prometheus.",
    )


def draw_batch() -> str:
    """A file of questions, from the plan to the answers."""
    canvas = Canvas()
    questions = canvas.box(16, "Questions", "Parquet or JSON Lines, of any length")
    plan = canvas.box(
        questions.bottom + GAP, "Plan", "one price for all questions, from the total", kind="key"
    )
    canvas.down(questions, plan)
    inset, space = 14, 40
    top = plan.bottom + GAP
    stream = canvas.box(
        top + space,
        "Sampling stream",
        "hundreds of calls in flight; each question",
        "stays inside its allowance",
        x=LEFT + inset,
        width=RIGHT - LEFT - 2 * inset,
    )
    half = (RIGHT - LEFT - 2 * inset - 14) / 2
    row = stream.bottom + GAP
    ledger = canvas.box(
        row, "Paid samples", "as Parquet segments;", "a restart reads them", x=stream.x, width=half
    )
    models = canvas.box(
        row,
        "Model servers",
        "one or several,",
        "with retries",
        x=stream.x + half + 14,
        width=half,
    )
    for lower in (ledger, models):
        canvas.arrow((lower.centre, stream.bottom), (lower.centre, lower.y), both=True)
    frame = ledger.bottom + inset - top
    canvas.frame(top, frame)
    canvas.text(MIDDLE, top + 26, "local engine: one process · Ray: one per partition", kind="note")
    canvas.arrow((MIDDLE, plan.bottom), (MIDDLE, top))
    answers = canvas.box(
        top + frame + GAP, "Answers", "one row per question, in the order of the input"
    )
    canvas.arrow((MIDDLE, top + frame), (MIDDLE, answers.y))
    return write(
        canvas,
        answers.bottom + 16,
        "A batch from questions to answers",
        "A file of questions is planned at one price. A stream samples the questions, each within"
        " its allowance, calls the model servers and stores every paid sample in segments. It"
        " runs in one process or on Ray, one batch per partition. It writes one answer per"
        " question.",
    )


DIAGRAMS = {
    "pipeline": draw_pipeline,
    "gateway": draw_gateway,
    "batch": draw_batch,
}


def main() -> None:
    """Write every diagram."""
    for name, draw in DIAGRAMS.items():
        (OUT / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
