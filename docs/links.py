"""A hook of MkDocs: links to files outside of docs/ lead to the repository, so that they work on
the site as well.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
LEFT_OUT = (DOCS / "examples", DOCS / "upstream")
"""Folders of docs/ that are no pages of the site: scripts, and texts for other projects."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page with each link to a file that is no page of the site replaced.

    Raises ValueError if it is not there.
    """
    folder = (DOCS / page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        file = Path(os.path.normpath(folder / match[1]))
        if not file.exists():
            raise ValueError(f"{page.file.src_uri}: links to {match[1]}, which is not there")
        if file.is_relative_to(DOCS) and not any(file.is_relative_to(one) for one in LEFT_OUT):
            return match[0]
        return f"]({config['repo_url']}/blob/main/{file.relative_to(DOCS.parent).as_posix()}{match[2] or ''})"  # noqa: E501

    return re.sub(r"\]\(((?:\.\./|examples/|upstream/)[^)#]+)(#[^)]*)?\)", replaced, markdown)
