"""Hub: files of question sets from the Hugging Face hub.

A source ``hf:OWNER/NAME`` is a dataset of the hub, ``hf:OWNER/NAME:FILE`` one of its files. A file
is fetched once and kept where the library ``huggingface_hub`` keeps it, which only this module
imports. It knows nothing of what the file holds.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from adacompute.core.errors import DataError, require
from adacompute.datasets.records import reason_of

PREFIX = "hf:"

DEFAULT_FILES = {
    "openai/gsm8k": "main/test-00000-of-00001.parquet",
    "HuggingFaceH4/MATH-500": "test.jsonl",
}
"""Which file of a dataset is meant when none is named."""

_ENDINGS = (".parquet", ".jsonl")


def fetch(source: str) -> Path:
    """Return the local copy of a file of the hub.

    Without a name it is the only Parquet or JSONL file of the dataset that is called a test.
    """
    hub = require("huggingface_hub", extra="hub")
    # Errors of its HTTP library, which differs from version to version, pass through as they are.
    kinds = require("huggingface_hub.errors", extra="hub").HfHubHTTPError.__mro__
    failures = tuple(
        kind for kind in kinds if issubclass(kind, Exception) and kind is not Exception
    )
    name, _, file = source.removeprefix(PREFIX).partition(":")
    try:
        chosen = file or DEFAULT_FILES.get(name)
        if not chosen:
            chosen = _choose(name, hub.HfApi().list_repo_files(name, repo_type="dataset"))
        return Path(hub.hf_hub_download(name, chosen, repo_type="dataset"))
    except DataError:
        raise
    except (*failures, ValueError) as error:
        raise DataError(
            f"{source} cannot be fetched from the Hugging Face hub ({reason_of(error)}): "
            "fetch the file by other means and name it instead"
        ) from None


def _choose(name: str, files: list[str]) -> str:
    """Choose the one test file among the files of a dataset."""
    data = [file for file in files if file.endswith(_ENDINGS)]
    tests = [file for file in data if "test" in PurePosixPath(file).name]
    if len(tests) == 1:
        return tests[0]
    shown = ", ".join((tests or data)[:10]) or "none"
    raise DataError(
        f"{PREFIX}{name} does not say which file is meant: name one as {PREFIX}{name}:FILE, of "
        f"{shown}"
    )
