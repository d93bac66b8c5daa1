"""Project metadata: the links of a release, and the README as the package index shows it.

Hatchling calls this when it builds the package. If ``PROJECT_URL`` is set to the address of the
repository, as the release sets it, the package has links to it, and links of the README to files
lead to the files of that version. Otherwise the package has no links and the README is as it is. A
source archive keeps what it was built with.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Source": "",
    "Documentation": "/tree/{tag}/docs",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/security/policy",
}


def make_urls(url: str, tag: str) -> dict[str, str]:
    """Return the links of a project, by their labels."""
    return {name: url + page.format(tag=tag) for name, page in PAGES.items()}


def complete_links(text: str, url: str, tag: str) -> str:
    """Return a page of which links and pictures lead to the files of a tag.

    >>> complete_links("![a](b.svg) [c](d.md#e) [f](#g) [h](https://i)", "https://x", "v1")
    '![a](https://x/raw/v1/b.svg) [c](https://x/blob/v1/d.md#e) [f](#g) [h](https://i)'
    """

    def complete(match: re.Match[str]) -> str:
        kind = "raw" if match["mark"] else "blob"
        return f"{match['mark']}{match['label']}({url}/{kind}/{tag}/{match['target']})"

    link = r"(?P<mark>!?)(?P<label>\[[^\]]*\])\((?!#|[a-z]+:)(?P<target>[^)]+)\)"
    return re.sub(link, complete, text)


class ProjectMetadata(MetadataHookInterface):
    """What `pyproject.toml` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the links and the README."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        url, tag = os.environ.get("PROJECT_URL", "").rstrip("/"), f"v{metadata['version']}"
        if url:
            metadata["urls"] = make_urls(url, tag)
            text = complete_links(text, url, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
