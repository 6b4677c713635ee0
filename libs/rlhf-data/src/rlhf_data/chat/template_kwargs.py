"""Variables that a chat template reads beside messages and tools, such as ``enable_thinking`` of Qwen3.

A run gives them by an option, a row by its column ``chat_template_kwargs``, a client of an endpoint in its request. One
that the template does not read would change nothing, and is refused.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf_core.contracts.executor import Renderer
from rlhf_core.errors import DataError
from rlhf_core.outside.json_reader import parse_json

from ..source import TEMPLATE_KWARGS, Row
from .control_words import ControlWords

if TYPE_CHECKING:
    from jinja2 import nodes

TemplateKwargs = Mapping[str, Any]
"""Values by the names of variables."""

R = TypeVar("R", bound=Renderer)

_GIVEN = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message"}
    | {"raise_exception", "strftime_now"}
    | {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
)
"""Names that a renderer gives every template itself, the tokenizer's own among them, whether it has one or not."""
_BLOCK = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Beginning or end of a block that Transformers alone knows."""


def kwargs_of(row: Row) -> dict[str, Any]:
    """Return the variables that a row gives, an object or its JSON text; empty where it gives none.

    Raises:
        DataError: the column holds anything else.
    """
    value = row.get(TEMPLATE_KWARGS)
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as error:
            raise DataError(
                f"column {TEMPLATE_KWARGS!r}: {error}", code="template/malformed-kwargs"
            ) from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(
            f"column {TEMPLATE_KWARGS!r}: expected an object such as {{'enable_thinking': false}}, got {value!r:.60}",
            code="template/malformed-kwargs",
        )
    return dict(value)


def renderer_of(row: Row, renderer: R) -> R:
    """Return the renderer with the variables that a row gives; the same one where it gives none.

    Raises:
        DataError: the column holds none, or the chat template does not read them.
    """
    given = kwargs_of(row)
    return renderer.with_template_kwargs(given) if given else renderer


def check_kwargs(names: Iterable[str], template: str | None, special: Iterable[str]) -> None:
    """Refuse names of variables that a template does not read.

    Args:
        template: text of the chat template; None: the tokenizer has none.
        special: names of further special tokens, which are the tokenizer's, such as ``image_token``.

    Raises:
        DataError: there is such a name; the message has those that the template reads.
    """
    readable = () if template is None else sorted(readable_names(template).difference(special))
    for name in names:
        if name in readable:
            continue
        near = difflib.get_close_matches(name, readable, n=1)
        read = f"reads {', '.join(readable)}" if readable else "reads no such variables"
        raise DataError(
            f"{TEMPLATE_KWARGS}: {name!r} would change nothing, for the model's chat template {read}. "
            + (f"Did you mean {near[0]!r}?" if near else "Leave it out"),
            code="template/unread-kwargs",
        )


def refuse_words(kwargs: TemplateKwargs, words: ControlWords) -> None:
    """Refuse values in which a control word is spelled: the template would make a control token of it.

    Raises:
        DataError: there is such a value.
    """
    for name, value in kwargs.items():
        if found := words.names(json.dumps(value, ensure_ascii=False, default=repr)):
            raise DataError(
                f"{TEMPLATE_KWARGS}: the value of {name!r} has {' '.join(found)}, which is a control token where the "
                "chat template writes it. Leave it out, or set --data.control_words tokens",
                code="template/kwargs-with-control-token",
            )


@lru_cache(maxsize=16)
def readable_names(template: str) -> frozenset[str]:
    """Return the variables that a template reads, but those that every template is given.

    What it sets itself is none, unless it asks whether it was given (``thinking is defined``, ``thinking | default``),
    or sets it from itself outside of loops.

    Raises:
        DataError: it is no template.
    """
    from jinja2 import Environment, TemplateError, meta

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        parsed = environment.parse(_BLOCK.sub("", template))
    except TemplateError as error:
        raise DataError(
            f"the chat template cannot be read: {error}", code="template/unreadable"
        ) from error
    # Of a name that is set in a branch, Jinja cannot tell whether it is read where it is not set.
    undeclared = frozenset(meta.find_undeclared_variables(parsed)) - _GIVEN
    return undeclared - frozenset(_set_names(parsed)).difference(_asked_for(parsed))


def _set_names(template: nodes.Template) -> Iterator[str]:
    from jinja2 import nodes

    for name in template.find_all(nodes.Name):
        if name.ctx != "load":
            yield name.name


def _asked_for(template: nodes.Template) -> Iterator[str]:
    """Yield the names of which a template asks whether it was given them, or which it sets from themselves."""
    from jinja2 import nodes

    asks = {"defined", "undefined", "default", "d"}
    for asked in template.find_all((nodes.Test, nodes.Filter)):
        if asked.name in asks and isinstance(asked.node, nodes.Name):
            yield asked.node.name
    outside: list[nodes.Node] = list(template.body)
    while outside:
        node = outside.pop()
        if isinstance(node, nodes.If):
            outside += [*node.body, *node.elif_, *node.else_]
        elif isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
            read = (name.name for name in node.node.find_all(nodes.Name))
            yield from (name for name in read if name == node.target.name)
