"""Steps of the site's build that MkDocs does not have: pages that are made from the code, and files outside of `docs`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from glossary_links import meanings, with_anchors, with_links  # noqa: E402 - from `tools`

_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
_SETTINGS = "conf/scyllaspark.example.toml"
_DIAGRAM = re.compile(r'<pre class="mermaid">.*?</pre>', re.DOTALL)
_CODE_IN_TABLE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the reference, the changelog, the page for contributors, the settings file and the examples."""
    for page, text in _reference().items():
        files.append(File.generated(config, page, content=text))
    for page, source in _PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text().replace("](docs/", "](")))
    settings = f"# Settings file\n\nThis is the file `{_SETTINGS}`.\n\n```toml\n{(ROOT / _SETTINGS).read_text()}```\n"
    files.append(File.generated(config, "reference/settings-file.md", content=settings))
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.is_file() and path.suffix != ".pyc":
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def _reference() -> dict[str, str]:
    """Page → Markdown, made by the Python of the project: that of the site does not have the packages of the code."""
    python = Path(sys.prefix).parent / "bin" / "python"
    made = subprocess.run([python, ROOT / "tools" / "reference_pages.py"], stdout=subprocess.PIPE, check=True)
    pages: dict[str, str] = json.loads(made.stdout)
    return pages


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrites what GitHub and Python-Markdown read differently: links to examples, and `|` inside code in tables."""
    markdown = markdown.replace("](../examples/", "](examples/")
    return _CODE_IN_TABLE.sub(lambda found: found[0].replace("\\|", "|"), markdown)


def on_page_content(html: str, *, page: Page, **_: Any) -> str:
    """Lets wide diagrams scroll, and links the first use of words of the glossary."""
    html = _DIAGRAM.sub(r'<div class="diagram" tabindex="0">\g<0></div>', html)
    if page.file.src_uri == "glossary.md":
        return with_anchors(html)
    return with_links(html, get_relative_url("glossary.html", page.url), meanings())
