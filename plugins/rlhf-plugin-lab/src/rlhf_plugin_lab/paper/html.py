"""The page as HTML: one file without a request to anywhere, in which data are never markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files

from .chunks import to_json
from .contents import Contents

SCRIPTS = (
    "elements.js", "data.js", "text.js", "colors.js", "charts.js", "curves.js", "options.js",
    "table.js", "step.js", "replay.js", "group.js", "examples.js", "held_out.js", "tokens.js", "episode.js", "diff.js",
    "search.js", "main.js",
)  # fmt: skip
"""Files of the page's program, in the order in which they are put together."""
STYLES = ("page.css", "parts.css")


def page(contents: Contents) -> Iterator[bytes]:
    """Yield the page in pieces. What is shown first stands in front of the chunks, so that it is shown while a browser
    still reads these."""
    script, style = _joined(SCRIPTS), _joined(STYLES)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    yield (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rlhf view</title><style>{style}</style></head>\n"
        '<body><div id="app"><noscript>This page needs JavaScript, which it brings along.</noscript></div>\n'
        f'<script type="application/json" id="index">{to_json(contents.index)}</script>\n'
        f"<script>{script}</script>\n"
    ).encode()
    for name, packed in contents.chunks:
        yield b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), packed)
    yield b"</body></html>\n"


def _joined(names: tuple[str, ...]) -> str:
    folder = files("rlhf_plugin_lab") / "page"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """Return the source expression of a policy that allows exactly this script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
