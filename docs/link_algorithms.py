"""Writes, into each page of docs/algorithms, the link to the file and line where the algorithm stands.

Run with ``make generated`` after code has moved; a test compares the pages with what this would write.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlhf_core import plugins as plugin_loader
from rlhf_core.component import Registered
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import Plugins

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs/algorithms"
LINE = re.compile(r"^Source code: .*\n", re.MULTILINE)
OPTIONS = "\n## Options\n"
NAMED_AFTER_OTHERS = ("rlhf_commands", "rlhf_presets")
"""Kinds of which some have the name of a loss, with which they train, or of an estimator, which they choose."""


def link(entry: Registered[object]) -> str:
    """``Source code: [gspo.py](../../plugins/.../gspo.py#L42), class `GspoLoss`.``

    The line is that of the component's class.
    """
    path, _, line = (entry.source() or "").rpartition(":")
    file = Path(path).resolve().relative_to(ROOT.resolve()).as_posix()
    name = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    defined = re.match(r"(?:class|def) (\w+)", name)
    assert defined, f"{path}:{line} defines nothing: {name!r}"
    return f"Source code: [{Path(path).name}](../../{file}#L{line}), `{defined[1]}`.\n"


def linked(page: str, entry: Registered[object]) -> str:
    """The page with the link: where it was, or at the end of the formula, before the options."""
    new = link(entry)
    if LINE.search(page):
        return LINE.sub(lambda _: new, page, count=1)
    assert OPTIONS in page, f"the page of {entry.name} has no options"
    return page.replace(OPTIONS, f"\n{new}{OPTIONS}", 1)


def components(plugins: Plugins) -> dict[str, Registered[object]]:
    """The component of each page, by its name."""
    pages = {path.stem for path in PAGES.glob("*.md")}
    return {
        entry.name: entry
        for hook in COMPONENT_HOOKS
        if hook not in NAMED_AFTER_OTHERS
        for entry in plugins.registries[hook]
        if entry.name in pages
    }


def main() -> None:
    for name, entry in components(plugin_loader.load("")).items():
        path = PAGES / f"{name}.md"
        path.write_text(linked(path.read_text(encoding="utf-8"), entry), encoding="utf-8")


if __name__ == "__main__":
    main()
