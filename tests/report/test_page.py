"""The page is self-contained and accessible, and escapes the texts of others."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core import errors
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget, MissingExtra
from adacompute.evaluation.scoring.saving_text import describe_advice, describe_saving
from adacompute.options.shared import TodayOptions
from adacompute.report.page import render
from adacompute.report.wording import clean_text
from adacompute.stages.import_samples import import_samples
from adacompute.stages.report import report_run

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!-- <style>*{display:none}</style>",
    "\u202eevil\u202c \u2066isolated \u0000 control",
    "{{ 7 * 7 }} {% raw %} ${x}",
    "]]></svg><a href='javascript:alert(1)'>",
    "&lt;b&gt; &amp; already",
    "x" * 1_000_000,
]
FAST: dict[str, Any] = {"policy": "adaptive-consistency", "policies": ("retry",)}
ALLOWED = frozenset(
    re.findall(
        r"\w+",
        "html head meta title style body header p span bdi h1 h2 h3 a main section div figure svg "
        "g defs clippath path rect use text tspan line circle figcaption label input dl dt dd b i "
        "code pre ol ul li table caption thead tbody tr th td details summary footer script",
    )
)


def write(path: Path, questions: int, types: str, seed: int = 0) -> Path:
    """Write 8 samples of each question, which are correct as often as its type says."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(questions):
        chance = {"easy": 0.97, "fair": 0.62, "hopeless": 0.03, "coin": 0.5}
        chance |= {"sure": 1.0, "never": 0.0, "blank": 0.5}
        kind = types.split()[q % len(types.split())]
        text = f"{HOSTILE[q % len(HOSTILE)]} {q}" if "hostile" in path.name else f"What is {q}?"
        for sample in range(8):
            right = bool(rng.random() < chance[kind])
            answer = "7" if right else str(rng.integers(8, 10))
            unparsed = kind == "blank" or (sample == 3 and q % 4 == 0 and kind not in "sure never")
            rows.append(
                {
                    "question_id": f"{text[:40]}/{q}",
                    "question": text,
                    "difficulty": f"<i>{kind}</i>",
                    "model": f"{HOSTILE[0]} {HOSTILE[4]}",
                    "gold": "7",
                    "sample": sample,
                    "answer": None if unparsed else answer,
                    "correct": right and not unparsed,
                    "completion_tokens": 5 + q % 3,
                    "cost": 1e-7 if "cheap" in path.name else 0.001,
                }
            )
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose texts are all hostile."""
    root = tmp_path_factory.mktemp("page")
    import_samples(write(root / "hostile.parquet", 64, "easy fair fair hopeless"), root / "run")
    return root


@pytest.fixture(scope="module")
def page(place: Path) -> str:
    report_run(place / "run", out=place / "page.html", **FAST)
    return (place / "page.html").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects what a browser would see as elements, and as text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        last, attributes = self.tags[-1] if self.tags else ("", {})
        if last in ("script", "style") and self.cdata_elem:
            self.scripts.append((attributes, data))
        else:
            self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def test_hostile_texts_stay_text(page: str) -> None:
    reader = read(page)
    assert {tag for tag, _ in reader.tags} <= ALLOWED
    for tag, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert not attributes.keys() & {"src", "srcset", "xlink:href", "formaction", "action"}
    text = "".join(reader.words)
    assert HOSTILE[0] in text  # as words
    assert "{{ 7 * 7 }}" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\0]", page)
    assert "x" * 1000 not in page


def test_page_refers_to_nothing_outside(page: str) -> None:
    for _, attributes in read(page).tags:
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert not re.search(r"https?://(?!127\.0\.0\.1:8080/v1)", page)  # of commands to copy
    assert "<link" not in page


def test_security_policy_allows_only_its_own_style_and_script(page: str) -> None:
    reader = read(page)
    (policy,) = [
        attributes["content"]
        for tag, attributes in reader.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    run = [text for attributes, text in reader.scripts if attributes.get("type") is None]
    assert len(run) == 2
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def slider_data(page: str) -> dict[str, Any]:
    """Return what the script of a page reads."""
    (data,) = [t for attributes, t in read(page).scripts if attributes.get("id") == "data"]
    found: dict[str, Any] = json.loads(data)
    return found


def test_every_part_of_the_page_is_there_at_every_budget(page: str) -> None:
    found, tags = slider_data(page), read(page).tags
    parts = {attributes["data-part"] for _, attributes in tags if "data-part" in attributes}
    assert parts >= {"headline", "steps", "panel", "unsolved", "types", "examples", "verdict"}
    (slider,) = [attributes for tag, attributes in tags if tag == "input"]
    assert int(slider["max"] or 0) == len(found["points"]) - 1
    shown = [
        "\n".join(found["lines"][i] for i in one["parts"]["headline"]) for one in found["points"]
    ]
    assert shown[found["selected"]].strip() in page
    assert len(set(shown)) > 1
    for point in found["points"]:
        assert point["parts"].keys() == parts
        assert point["markers"]["curves"].keys() == {"wide", "narrow"}
    for line in found["lines"]:  # markup that the script puts into the page
        for tag, attributes in read(line).tags:
            assert tag in ALLOWED
            assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_the_page_at_another_budget_is_that_of_a_report_on_it(place: Path, page: str) -> None:
    points = slider_data(page)["points"]
    budgets = [point["budget"] for point in points]
    out = place / "other.html"
    result = report_run(place / "run", out=out, budget=4.0, **FAST)
    other = slider_data(out.read_text(encoding="utf-8"))
    first = slider_data(page)

    def text(data: dict[str, Any], index: int, part: str) -> str:
        lines = "\n".join(data["lines"][i] for i in data["points"][index]["parts"][part])
        return re.sub("<[^>]*>", "", lines)

    index = budgets.index("4 samples per question")
    assert html.escape(result["sentence"]) in text(other, other["selected"], "headline").replace(
        "\u00a0", " "
    )
    for part in ("headline", "steps", "types", "type_table", "examples", "unsolved", "sensitivity"):
        assert text(first, index, part) == text(other, other["selected"], part), part


def test_identifiers_are_unique_and_references_resolve(page: str) -> None:
    tags = read(page).tags
    names = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(names) == len(set(names))
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', page))
    wanted |= {a[key] for _, a in tags for key in ("for", "aria-labelledby") if a.get(key)}
    assert wanted <= set(names)


def test_the_page_is_accessible(page: str) -> None:
    tags = read(page).tags
    assert ("html", {"lang": "en"}) in tags
    headings = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert all(a.get("scope") in ("col", "row") for tag, a in tags if tag == "th")
    images = [a for _, a in tags if a.get("role") == "img"]
    assert len(images) == sum(tag == "figure" for tag, _ in tags) == 3
    assert all(len(image["aria-label"] or "") > 40 for image in images)
    assert all(a.get("aria-hidden") == "true" for tag, a in tags if tag == "svg")
    assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)


@pytest.fixture(scope="module")
def saving_page(place: Path) -> str:
    """Return a page that says what is saved."""
    report_run(place / "run", out=place / "saving.html", today=TodayOptions("5"), **FAST)
    return (place / "saving.html").read_text(encoding="utf-8")


def test_the_page_says_first_what_is_saved_and_what_to_run(place: Path, saving_page: str) -> None:
    document = json.loads((place / "run" / "report.json").read_text())
    today, unit = document["today"], document["unit"]
    assert document["budget"] == pytest.approx(today["delivered_cost"], rel=1e-3)
    header = saving_page.partition("<header>")[2].partition("</header>")[0]
    text = "".join(read(header).words).replace("\u00a0", " ")
    for line in describe_saving(today, unit):
        assert line in text
    assert describe_advice(today, unit) in text
    assert re.search("adacompute (serve|fit|evaluate) ", text)
    (colour,) = re.findall(r'<h1><span class="(\w+)">', header)
    colours = {"saves": "good", "no saving": "bad", "inconclusive": "open"}
    assert colour == colours[today["verdict"]]
    assert f".{colour} {{ color:" in saving_page


def test_the_cost_at_the_accuracy_of_today_is_a_figure_and_a_table(
    place: Path, saving_page: str
) -> None:
    document = json.loads((place / "run" / "report.json").read_text())
    assert [row["policy"] for row in document["savings"]] == [
        "adaptive-consistency",
        "mixture",
        "retry",
    ]
    own, today = document["savings"][0], document["today"]
    assert own["cost"] == today["same_accuracy_cost"]
    assert own["cost_low"] == pytest.approx((1 - today["saving_high"]) * today["cost"])
    tags = read(saving_page).tags
    figures = [attributes.get("id") for tag, attributes in tags if tag == "figure"]
    assert figures[:2] == ["curves", "savings"]
    table = saving_page.partition("The costs as a table")[2].partition("</table>")[0]
    assert table.count("<tr") == 1 + len(document["savings"])
    assert "None" not in saving_page
    test_security_policy_allows_only_its_own_style_and_script(saving_page)
    test_identifiers_are_unique_and_references_resolve(saving_page)
    test_hostile_texts_stay_text(saving_page)


def test_the_same_run_gives_the_same_bytes(place: Path, page: str) -> None:
    report_run(place / "run", out=place / "again.html", **FAST)
    assert (place / "again.html").read_text(encoding="utf-8") == page
    (place / "run" / "report.manifest.json").unlink()
    report_run(place / "run", out=place / "anew.html", **FAST)
    assert (place / "anew.html").read_text(encoding="utf-8") == page


@pytest.fixture
def report_on(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def report(
        questions: int, types: str, *, name: str = "source", **options: Any
    ) -> dict[str, Any]:
        source = write(tmp_path / f"{name}.parquet", questions, types, seed=3)
        import_samples(source, tmp_path / "run")
        return report_run(tmp_path / "run", out=tmp_path / "page.html", **{**FAST, **options})

    return report


def test_without_a_gain_the_page_does_not_serve_the_policy(
    report_on: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    result = report_on(60, "hopeless")
    assert result["verdict"] == "no gain"
    assert "use 2 samples" in result["sentence"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert result["sentence"] in page
    assert "use 2 samples" in page
    assert "adacompute serve" not in page.partition('<script type="application/json"')[0]


@pytest.mark.parametrize("policy", ["adaptive-consistency", "sequential"])
@pytest.mark.parametrize("kind", ["sure", "never"])
def test_samples_without_variation_have_a_page(
    report_on: Callable[..., dict[str, Any]], tmp_path: Path, kind: str, policy: str
) -> None:
    result = report_on(48, kind, policy=policy)
    assert (result["verdict"], result["gain"]) == ("no gain", 0.0)
    assert result["sentence"].endswith("use one sample per question.")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "at most 1 sample per question" in page
    assert "None" not in page


def test_unparsed_samples_lead_to_the_grader(
    report_on: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    result = report_on(48, "blank", policy="sequential")
    assert result["verdict"] == "not judged"
    assert "100 % of the samples could not be parsed" in result["sentence"]
    page = re.sub("</?span>", "", (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "fit again" in page
    assert "collect and grade" not in page


def test_too_few_questions_are_not_judged(report_on: Callable[..., dict[str, Any]]) -> None:
    result = report_on(12, "easy fair hopeless")
    assert result["verdict"] == "not judged"
    assert "12 independent questions are too few" in result["sentence"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"policy": "mixture"}, ConfigError, "'mixture'"),
        ({"policies": ("nobody",)}, ConfigError, "there is no policy 'nobody'"),
        ({"budget": 0.5}, InfeasibleBudget, r"0\.5"),
        ({"budget": float("nan")}, ConfigError, "finite number above 0"),
        ({"levels": (8, 16)}, DataError, "collect more samples"),
    ],
)
def test_invalid_options_are_refused(
    place: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        report_run(place / "run", out=place / "refused.html", **{**FAST, **options})
    assert not (place / "refused.html").exists()


def test_a_directory_as_output_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        report_run(place / "run", out=place, **FAST)


def test_missing_extra_is_refused_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"jinja2.*report"):
        report_run(place / "run", out=place / "none.html")


def test_stored_document_renders_the_same_page(place: Path, page: str) -> None:
    report_run(place / "run", out=place / "stored.html", **FAST)
    document = json.loads((place / "run" / "report.json").read_text())
    assert render(document) == page
    assert clean_text("a" * 10**6) == "a" * 239 + "…"
