from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "extract":
        words = request["text"].split()
        reply = {"answer": words[-1].lower() if words else None}
    else:
        reply = {"equal": request["left"] == request["right"]}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture(scope="session")
def data() -> Path:
    found = ROOT / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
    if not found.is_dir():
        pytest.skip("the recorded samples and question sets are not here")
    return found


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the command of a well-behaved program: the last word is the answer."""
    path = tmp_path_factory.mktemp("grader") / "last_word.py"
    path.write_text(PROGRAM)
    return f"{sys.executable} {path}"
