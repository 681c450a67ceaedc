"""A hook of MkDocs: links to files outside of docs/ lead to the repository, so that they work on the site as well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with each `](../FILE)` replaced. Raises ValueError for a file that is not there."""

    def outside(match: re.Match[str]) -> str:
        path, fragment = match[1], match[2] or ""
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_uri}: links to {path}, which is not there")
        return f"]({config['repo_url']}/blob/main/{path}{fragment})"

    found = re.sub(r"\]\(\.\./([^)#]+)(#[^)]*)?\)", outside, markdown)
    return re.sub(r"\]\((examples/[^)]+)\)", rf"]({config['repo_url']}/blob/main/docs/\1)", found)
