"""Pages of the documentation site, as hooks of MkDocs: the repository's Markdown, its sources, and the API reference.

Markdown stays where it is and keeps links that a code host follows. A page has the path that its file has in the
repository; a link to a folder leads to the folder's README, and one to a source file to that file with numbered lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

sys.path.insert(0, str(Path(__file__).parent))

import formulas
from api_modules import LIBRARIES, ROOT, SHADOWED, file_of, public_modules

PAGES = (
    "*.md",
    "docs/**/*.md",
    "core/README.md",
    "cli/README.md",
    *(f"{family}/**/README.md" for family in ("libs", "plugins", "contrib", "examples")),
)
IMAGES = ("docs/**/*.png", "examples/*/*.png")
SOURCES = "source"
"""Folder of the site with the source files that pages link to."""
REFERENCE = "api"
BOOSTS = {
    "docs/error-codes.md": 0.002,
    "docs/options": 0.25,
    "docs/conformance.md": 0.25,
    "docs/migrating.md": 0.1,
    "docs/": 4.0,
    "examples/": 2.0,
    "README": 1.0,
}
"""Weights of pages in the search, by the beginning of their path: guides come before lists and other Markdown (1)."""
REFERENCE_BOOST = 0.0005
"""Weight of the API reference. The search gives titles 1000 times the weight of text, and titles of the reference are
the names of options."""
OWN = ROOT / "docs/site"
"""Folder of what only the site has, which MkDocs reads by itself."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
"""Target of a link to another file of the repository: its path, and the anchor if it has one."""
FENCE = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)
CELL = re.compile(r"<td[^>]*>.*?</td>", flags=re.DOTALL)
LINE_ANCHOR = re.compile(r"^#L(\d+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the API reference, the algorithms and pages of options to the navigation, and let formulas be set."""
    fences = config.mdx_configs["pymdownx.superfences"]["custom_fences"]
    fences.append({"name": "math", "class": "formula", "format": formulas.fence})
    for section in config.nav or []:
        if "Reference" in section:
            options = section["Reference"].index("docs/options.md")
            section["Reference"][options] = {
                "Options": ["docs/options.md", *_paths("docs/options/*.md")]
            }
            section["Reference"] += [{"API": [f"{REFERENCE}/README.md", *_navigation()]}]
        if "Algorithms" in section:
            named = [each for each in section["Algorithms"] if isinstance(each, dict)]
            written = {each for each in section["Algorithms"] if isinstance(each, str)}
            written |= {path for each in named for path in each.values()}
            pages = _paths("docs/algorithms/*.md")
            section["Algorithms"] += [page for page in pages if page not in written]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's pages and images, the sources that they link to, and the pages of the reference."""
    pages = [path for pattern in PAGES for path in _found(pattern)]
    images = [path for pattern in IMAGES for path in _found(pattern)]
    for path in dict.fromkeys([*pages, *images]):
        files.append(_mirrored(path, config))
    linked = {target for page in pages for target in _linked_files(page)}
    for target in sorted(linked - set(pages) - set(images)):
        uri = f"{SOURCES}/{_source_name(target)}"
        files.append(File.generated(config, uri, content=_highlighted(target)))
    for uri, content in _reference().items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to folders and to sources lead to their pages.

    Raises:
        PluginError: a formula that cannot be set, with its page and line.
    """
    path = ROOT / page.file.src_uri
    for line, problem in formulas.problems(markdown):
        raise PluginError(f"{page.file.src_uri}:{line}: this formula cannot be set: {problem}")
    boosts = (each for start, each in BOOSTS.items() if page.file.src_uri.startswith(start))
    page.meta.setdefault("search", {"boost": next(boosts, 1.0)})
    if not path.is_file():
        return markdown

    def rewritten(found: re.Match[str]) -> str:
        return _site_link(path, found[1], found[2] or "")

    return _outside_of_fences(markdown, lambda text: LINK.sub(rewritten, text))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let code in a table's cell show ``a|b`` where Markdown has to write ``a\\|b``, as code hosts do.

    Tables of options are marked for site.css: on a phone what an option does stands below its name.
    """
    if page.file.src_uri.startswith("docs/options/"):
        html = html.replace("<table>", '<div class="stacked"><table>').replace(
            "</table>", "</table></div>"
        )
    return CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def _found(pattern: str) -> list[Path]:
    """Files of the repository, without what builds and environments leave in it."""
    hidden = {".venv", "dist", "runs"}
    return [
        path
        for path in sorted(ROOT.glob(pattern))
        if path.is_file()
        and not hidden & set(path.relative_to(ROOT).parts)
        and not path.is_relative_to(OWN)
    ]


def _paths(pattern: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in _found(pattern)]


def _mirrored(path: Path, config: MkDocsConfig) -> File:
    uri = path.relative_to(ROOT).as_posix()
    return File(uri, str(ROOT), config.site_dir, config.use_directory_urls)


def _outside_of_fences(markdown: str, change: Callable[[str], str]) -> str:
    return "".join(
        part if part.startswith("```") else change(part) for part in FENCE.split(markdown)
    )


def _target(page: Path, link: str) -> Path:
    """File that a link leads to: of a folder, its README, or else what its ``__init__`` says."""
    path = Path(os.path.normpath(page.parent / link))
    if path.is_dir():
        says = (path / name for name in ("README.md", "__init__.py"))
        return next((file for file in says if file.is_file()), path)
    return path


def _linked_files(page: Path) -> Iterator[Path]:
    for part in FENCE.split(page.read_text(encoding="utf-8")):
        if not part.startswith("```"):
            yield from (
                target
                for found in LINK.finditer(part)
                if (target := _target(page, found[1])).is_file()
            )


def _site_link(page: Path, link: str, anchor: str) -> str:
    target = _target(page, link)
    if not target.is_file():
        return link + anchor  # MkDocs says that it leads nowhere.
    relative = os.path.relpath(target, page.parent)
    if target.suffix in (".md", ".png"):
        return relative + anchor
    sources = os.path.relpath(ROOT / SOURCES, page.parent)
    line = LINE_ANCHOR.sub(r"#L-\1", anchor)
    return f"{sources}/{_source_name(target)}{line}"


def _source_name(path: Path) -> str:
    # MkDocs leaves out what begins with a dot.
    return "/".join(part.lstrip(".") for part in path.relative_to(ROOT).parts) + ".html"


def _highlighted(path: Path) -> str:
    """Page with a source file whose line 12 is ``#L-12``."""
    title = path.relative_to(ROOT).as_posix()
    try:
        lexer: Any = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(
        full=True, title=title, linenos="inline", lineanchors="L", anchorlinenos=True
    )
    return str(highlight(path.read_text(encoding="utf-8"), lexer, formatter))


def _pages_of_modules() -> dict[str, list[str]]:
    """Modules by page. Those of a folder of a library or of ``rlhf_testing`` share the folder's page."""
    pages: dict[str, list[str]] = {}
    for module in public_modules():
        shared = module.startswith(LIBRARIES) and file_of(module).stem != "__init__"
        pages.setdefault(module.rpartition(".")[0] if shared else module, []).append(module)
    return pages


def _navigation() -> list[str]:
    return [f"{REFERENCE}/{page}.md" for page in _pages_of_modules()]


def _reference() -> dict[str, str]:
    """Pages of the API reference: their paths and their Markdown."""
    pages = {}
    for page, modules in _pages_of_modules().items():
        hidden = [defined for name, defined in SHADOWED.items() if name.rpartition(".")[0] == page]
        blocks = [
            f"::: {name}\n    options:\n      heading_level: {1 if name == page else 2}\n"
            for name in [*modules, *hidden]
        ]
        pages[f"{REFERENCE}/{page}.md"] = (
            f"---\ntitle: {page}\nsearch:\n  boost: {REFERENCE_BOOST}\n---\n\n" + "\n".join(blocks)
        )
    return pages
