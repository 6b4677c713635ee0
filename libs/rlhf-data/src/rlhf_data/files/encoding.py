"""Text files in other encodings than UTF-8: what their readers say to do."""

from __future__ import annotations

AS_UTF8 = (
    "Convert the file: iconv -f ENCODING -t UTF-8 OLD > NEW, where ENCODING is mostly WINDOWS-1252, "
    "or UTF-16 if no line can be read"
)
"""Advice behind what is wrong; nothing in a file says its encoding for certain."""
