"""Hub: question sets from the Hugging Face hub.

The source ``hf:OWNER/NAME`` is a dataset of the hub and ``hf:OWNER/NAME:FILE`` one of its files.
``huggingface_hub``, which only this module imports, downloads each file once and caches it. This
module knows nothing of the file's content.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from adacompute.core.errors import DataError, needs_extra
from adacompute.datasets.records import first_line

PREFIX = "hf:"

DEFAULT_FILES = {
    "openai/gsm8k": "main/test-00000-of-00001.parquet",
    "HuggingFaceH4/MATH-500": "test.jsonl",
}
"""File of a dataset to use if the source names none."""

_SUFFIXES = (".parquet", ".jsonl")


def fetch(source: str) -> Path:
    """Download a file of the hub and return its local path.

    If the source names no file, it is the only Parquet or JSONL file with ``test`` in its name.
    """
    with needs_extra("hub"):
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError

    # The library also raises errors of its HTTP library, which differs between versions.
    failures: tuple[type[Exception], ...] = (
        ValueError,
        *(base for base in HfHubHTTPError.__mro__ if _is_specific(base)),
    )
    name, _, file = source.removeprefix(PREFIX).partition(":")
    try:
        chosen = file or DEFAULT_FILES.get(name)
        if not chosen:
            files = huggingface_hub.HfApi().list_repo_files(name, repo_type="dataset")
            chosen = _choose(name, files)
        return Path(huggingface_hub.hf_hub_download(name, chosen, repo_type="dataset"))
    except DataError:
        raise
    except failures as error:
        raise DataError(
            f"{source} cannot be downloaded from the Hugging Face hub ({first_line(error)}): "
            "download the file by other means and give its path"
        ) from None


def _is_specific(base: type) -> bool:
    return issubclass(base, Exception) and base is not Exception


def _choose(name: str, files: list[str]) -> str:
    """Choose the only test file of a dataset."""
    data = [file for file in files if file.endswith(_SUFFIXES)]
    tests = [file for file in data if "test" in PurePosixPath(file).name]
    if len(tests) == 1:
        return tests[0]
    listed = ", ".join((tests or data)[:10]) or "none"
    raise DataError(
        f"{PREFIX}{name} has no single test file: name one as {PREFIX}{name}:FILE, of {listed}"
    )
