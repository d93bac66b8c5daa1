"""Screenshot: the picture of the report in the documentation: the example, and 5 samples today.

Run it with ``python -m scripts.take_screenshot`` after the page has changed. It needs Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "docs" / "_static" / "report.png"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--window-size=1100,960",
)


def main() -> None:
    """Write the report of the example set and take a picture of its first screen."""
    adacompute = str(Path(sys.executable).with_name("adacompute"))
    with tempfile.TemporaryDirectory() as directory:
        run, page = f"{directory}/example", f"{directory}/report.html"
        for command in (
            [adacompute, "research", "import", "example", "--run", run],
            [adacompute, "report", run, "--today", "5", "--out", page],
            ["chromium", *FLAGS, f"--screenshot={OUT}", f"file://{page}"],
        ):
            subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
