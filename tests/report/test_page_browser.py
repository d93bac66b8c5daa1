"""The page in a real browser: what matters is in sight, the slider works, nothing is requested."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from adacompute.options.shared import TodayOptions
from adacompute.stages.report import report_run
from adacompute.stages.research.import_samples import import_samples

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]
MOVE = """
(function () {
  var slider = document.getElementById("budget");
  slider.value = slider.max;
  slider.dispatchEvent(new Event("input"));
  var seen = {width: document.documentElement.scrollWidth <= window.innerWidth};
  document.querySelectorAll("[data-part]").forEach(function (part) {
    seen[part.dataset.part] = part.textContent.trim();
  });
  seen.dot = document.querySelector("#curves .wide .op-dot").getAttribute("cx");
  seen.label = slider.getAttribute("aria-valuetext");
  seen.styled = getComputedStyle(document.querySelector(".op-dot")).strokeWidth;
  document.title = JSON.stringify(seen);
})();
"""

MEASURE = """
(function () {
  var seen = {width: document.documentElement.scrollWidth, window: window.innerWidth};
  [["saving", "h1"], ["verdict", "h1 span"], ["command", "header pre"]].forEach(function (one) {
    seen[one[0]] = document.querySelector(one[1]).getBoundingClientRect().bottom;
  });
  top.document.title = JSON.stringify(seen);
})();
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("browser")
    import_samples(Path("example"), root / "run")
    out = root / "page.html"
    report_run(root / "run", out=out, policy="early-stopping", policies=("retry",))
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def saving_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("saving")
    import_samples(Path("example"), root / "run")
    out, today = root / "page.html", TodayOptions("5")
    known: dict[str, Any] = {"policy": "early-stopping", "policies": ("retry",), "today": today}
    report_run(root / "run", out=out, **known)
    return out.read_text(encoding="utf-8")


def run_script(page: str, script: str) -> str:
    """Return a page that also runs a script, which its security policy allows."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = page.replace("script-src ", f"script-src 'sha256-{digest}' ")
    return allowed.replace("</body>", f"<script>{script}</script></body>")


def read_title(shown: str) -> Any:
    """Return what a script wrote into the title."""
    found = re.search("<title>(.*?)</title>", shown)
    assert found
    return json.loads(html.unescape(found[1]))


@pytest.fixture
def served(page: str) -> Iterator[tuple[dict[str, str], str, list[str]]]:
    """Serve pages by their paths, and record the requests."""
    pages, asked = {"/": page}, list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield pages, f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def browse(address: str, profile: Path, *options: str) -> tuple[str, str]:
    """Load a page, and return its final HTML and the messages of its console."""
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--disable-background-networking", f"--user-data-dir={profile}"),
            *options,
            *("--virtual-time-budget=2000", "--dump-dom", address),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(said)


def test_page_loads_without_errors_and_sends_no_requests(
    served: tuple[dict[str, str], str, list[str]], tmp_path: Path
) -> None:
    _, address, asked = served
    shown, said = browse(address + "/", tmp_path)
    assert said == ""
    assert 'class="live"' in shown
    assert asked == ["/"]


@pytest.mark.parametrize("width", [1280, 500])
def test_slider_moves_the_operating_point(
    page: str, served: tuple[dict[str, str], str, list[str]], tmp_path: Path, width: int
) -> None:
    pages, address, _ = served
    pages["/moved"] = run_script(page, MOVE)
    shown, said = browse(address + "/moved", tmp_path, f"--window-size={width},1000")
    assert said == ""
    seen = read_title(shown)
    (data,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page)
    first, last = (json.loads(data)["points"][i] for i in (json.loads(data)["selected"], -1))
    assert seen["budget"] == seen["label"] == "16 samples per question"
    lines = json.loads(data)["lines"]
    for part in ("headline", "panel", "steps", "types", "examples", "verdict"):
        here, before = ("\n".join(lines[i] for i in one["parts"][part]) for one in (last, first))
        assert seen[part] == html.unescape(re.sub("<[^>]*>", "", here)).strip(), part
        assert here != before or part == "steps", part
    places = [one["markers"]["curves"]["wide"]["dot"]["cx"] for one in (last, first)]
    assert seen["dot"] == places[0] != places[1]
    assert seen["styled"] == "3px"
    assert seen["width"]


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_the_saving_and_the_next_command_are_visible_without_scrolling(
    saving_page: str,
    served: tuple[dict[str, str], str, list[str]],
    tmp_path: Path,
    size: tuple[int, int],
) -> None:
    pages, address, _ = served
    width, height = size
    pages["/measured"] = run_script(saving_page, MEASURE)
    # A window has a minimum width, and a frame has none.
    frame = f'<iframe src="/measured" width="{width}" height="{height}"></iframe>'
    pages["/framed"] = f"<!doctype html><title></title>{frame}"
    shown, said = browse(address + "/framed", tmp_path, "--window-size=1500,1000")
    assert said == ""
    seen = read_title(shown)
    assert seen["width"] <= seen["window"] == width
    assert 0 < seen["verdict"] <= seen["saving"] < seen["command"] < height


def test_page_works_without_javascript(
    page: str, served: tuple[dict[str, str], str, list[str]], tmp_path: Path
) -> None:
    pages, address, _ = served
    pages["/still"] = re.sub("script-src 'sha256-[^']*'", "script-src 'none'", page)
    shown, _ = browse(address + "/still", tmp_path)
    shown = html.unescape(shown)
    (sentence,) = re.findall("<h1>(.*?)</h1>", page)
    assert sentence in shown
    assert 'class="live"' not in shown
    assert "op-dot" in shown
