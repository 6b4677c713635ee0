"""The code of a notebook, with commands of IPython taken out."""

from __future__ import annotations

import re

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object

_COMMAND = re.compile(r"^([ \t]*)[!%].*$", re.MULTILINE)
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!capture|time)")


def code_of(text: str, name: str) -> str:
    """Return the code of a notebook's cells, as one script.

    Args:
        name: the file, in words.

    Raises:
        ConfigError: the text is no notebook.
    """
    try:
        cells = parse_object(text.encode())["cells"]
        sources = ["".join(one["source"]) for one in cells if one["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"rlhf migrate: {name}: expected a notebook, JSON with a list cells; got another file",
            code="migrate/invalid-python",
        ) from error
    python = [source for source in sources if not _OTHER_LANGUAGE.match(source)]
    return "\n\n".join(_COMMAND.sub(r"\1pass", source) for source in python)
