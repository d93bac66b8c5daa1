"""Screenshot: the picture of the report in the documentation, of the example set at two samples.

Run it with ``python docs/screenshot.py`` after the page has changed; it needs Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PLACE = Path(__file__).resolve().parent / "_static" / "report.png"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--window-size=1100,960",
)


def main() -> None:
    """Make the example's report and photograph its first screen."""
    adacompute = Path(sys.executable).with_name("adacompute")
    with tempfile.TemporaryDirectory() as place:
        run, page = f"{place}/example", f"{place}/report.html"
        for command in (
            [adacompute, "import", "example", "--run", run],
            [adacompute, "report", run, "--budget", "2", "--out", page],
            ["chromium", *FLAGS, f"--screenshot={PLACE}", f"file://{page}"],
        ):
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own


if __name__ == "__main__":
    main()
