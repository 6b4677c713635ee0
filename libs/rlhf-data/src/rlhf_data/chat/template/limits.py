"""Chat templates of Jinja, run as Transformers runs them, within limits of work and size.

A template comes with a model and is a program: it may loop for ever, or write without end. So loops, calls and texts
are counted while it runs. The limits count work and not seconds, so that a busy machine refuses no row that another
takes. One operation on one value runs as far as the memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

MAX_CHARACTERS = 2**26
"""Maximum number of characters of a text that a template makes."""
MAX_STEPS = 2_000_000
"""Maximum number of steps of a template: turns of loops, calls, and every ``_CHARACTERS_PER_STEP`` characters. One core
takes some seconds for them, and an ordinary conversation some hundred."""
_STEPS_PER_PAIR = 4
"""Further steps for each pair of messages: templates look at all messages after each."""
_CHARACTERS_PER_STEP = 1024

_Value = TypeVar("_Value")


class TemplateLimit(TemplateRuntimeError):
    """A template went beyond a limit."""


class Rendered(NamedTuple):
    """Text of a template, and the places in it that ``{% generation %}`` blocks wrote."""

    text: str
    blocks: tuple[tuple[int, int], ...]


class _Account:
    """Account of the steps of one rendering."""

    def __init__(self, steps: int) -> None:
        self._limit = self._left = steps

    def step(self, characters: int = 0) -> None:
        self._left -= 1 + characters // _CHARACTERS_PER_STEP
        if self._left < 0:
            raise TemplateLimit(
                f"it does not come to an end within {self._limit} steps; expected a template whose work grows with the "
                "messages"
            )
        _check_length(characters)


_account: ContextVar[_Account | None] = ContextVar("account of a template", default=None)


def _counted(value: _Value) -> _Value:
    """Return a value, and count it."""
    account = _account.get()  # none while constants are computed as a template is compiled
    if account is not None:
        account.step(len(value) if isinstance(value, str) else 0)
    return value


class _Counting(CodeGenerator):
    """Compiler of templates that count the turns of their loops, the calls of their macros, and the texts they join."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._count(node.body)
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        self._count(node.body)
        super().visit_Macro(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.counted(")
        super().visit_Concat(node, frame)
        self.write(")")

    def _count(self, body: list[nodes.Node]) -> None:
        # A call of the sandbox would cost ten times as much; the name is written behind "environment." as it is.
        body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("counted(None)"), lineno=1))


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox in which a template counts what it does."""

    code_generator_class = _Counting
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    counted = staticmethod(_counted)

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        return _counted(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_length(left.bit_length() * right)
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    _check_length(len(value) * times)
        return _counted(super().call_binop(context, operator, left, right))


class BoundedTemplate:
    """Chat template that is run within limits.

    Args:
        source: the template's text.

    Raises:
        Exception: of any kind, if the template cannot be compiled.
    """

    def __init__(self, source: str) -> None:
        self._template = _compiled(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        reply: bool,
        words: Mapping[str, Any],
    ) -> Rendered:
        """Return the text that the template makes of messages.

        Args:
            reply: end where the policy's turn begins.
            words: words of special tokens, by the names that templates have for them (``bos_token``), and further
                variables.

        Raises:
            Exception: of any kind, since templates are programs; ``TemplateLimit`` beyond a limit.
        """
        steps = MAX_STEPS + _STEPS_PER_PAIR * len(messages) ** 2
        pieces: list[str] = []
        blocks: list[tuple[int, int]] = []
        account = _account.set(_Account(steps))
        try:
            with self._template.environment.activate_tracker(pieces, blocks):  # type: ignore[attr-defined]
                length = 0
                for piece in self._template.generate(
                    messages=messages,
                    tools=tools,
                    add_generation_prompt=reply,
                    **{"documents": None, **words},
                ):
                    pieces.append(piece)
                    length += len(piece)
                    _check_length(length)
        finally:
            _account.reset(account)
        return Rendered("".join(pieces), tuple(blocks))


@lru_cache
def _compiled(source: str) -> Template:
    """Return a template in Transformers' own environment (its filters, functions and blocks), but for the counting."""
    library = _compile_jinja_template("").environment
    environment = _BoundedEnvironment(
        trim_blocks=library.trim_blocks,
        lstrip_blocks=library.lstrip_blocks,
        extensions=[type(extension) for extension in library.extensions.values()],
        finalize=_counted,
    )
    environment.globals.update(library.globals)
    environment.filters.update({name: _bounded(one) for name, one in library.filters.items()})
    return environment.from_string(source)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose results are counted."""

    @wraps(function)  # with the marks by which Jinja passes it the context
    def counted(*args: Any, **kwargs: Any) -> Any:
        return _counted(function(*args, **kwargs))

    return counted


def _check_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise TemplateLimit(
            f"it writes more than {MAX_CHARACTERS} characters; expected a text about as long as the messages"
        )
