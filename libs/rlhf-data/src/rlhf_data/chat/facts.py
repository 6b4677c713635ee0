"""Facts about a chat template: how it renders a continued conversation, in a form for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Shown(StrEnum):
    """Treatment of a part of a conversation by a template."""

    KEPT = "kept"
    TRIMMED = "trimmed"
    """Blanks at its ends are gone."""
    DROPPED = "dropped"
    """It is shown at first, and gone in a later turn."""
    CHANGED = "changed"
    HIDDEN = "hidden"
    """It is never shown."""
    REFUSED = "refused"
    """The template raises an error."""


class Weight(StrEnum):
    """Weight of a finding."""

    FINE = "fine"
    NOTE = "note"
    """True of this template, and nothing is lost by it."""
    DRIFT = "drift"
    """Rendering a conversation again gives other tokens than the policy read and wrote."""


FINE, NOTE, DRIFT = Weight
Said = tuple[Weight, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a template."""

    weight: Weight
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """Everything that is known about the chat template of a tokenizer."""

    prefix_preserving: bool
    """A conversation that went on begins with the words that the policy read and wrote before."""
    prefix_reason: str
    """Where it does not; empty where it does."""
    same_blanks: bool
    """Its blanks are the same too, where the answers have none at their ends."""
    same_tokens: bool
    """The rendering of the whole conversation has the same tokens, too, as what was read and written step by step."""
    answers: Shown
    """An answer with blanks at its ends, in a later turn."""
    thoughts: Shown | None
    """A thought of an earlier turn; None: no form of thoughts is known."""
    thoughts_in_tool_cycles: Shown | None
    """A thought before a call whose result follows; None: no form of thoughts or calls is known."""
    opens_thought: bool
    """The generation prompt begins a thought."""
    adds_thought: bool
    """An answer without a thought is shown with an empty one."""
    system: Shown
    """A system message."""
    default_system: str
    """System prompt that the template writes where a conversation has none."""
    tools: Shown
    """Schemas of tools."""
    tools_move: bool
    """The tools stand at another place in each turn."""
    tool_results: Shown
    """A message with a tool's result."""
    call_form: str | None
    """Form in which calls of tools are read from answers; None: none is known."""
    calls: Shown
    """JSON of a call's arguments; ``changed`` where a value is written in another way."""
    generation_prompt: str
    """Text at whose end the policy writes."""
    end_of_turn: str
    """Text that ends a turn; empty: the template writes no special token there, nor one before the next turn."""
    end_begins_next: bool
    """The template writes no end: this is the token by which the user's next turn begins."""
    end_of_calls: str
    """Text that ends a turn of calls, where it is another one; else empty."""
    end_is_stop: bool
    """The tokens that end a turn end a generation."""
    stops: tuple[str, ...]
    """Tokens that end a generation."""
    starts: tuple[str, ...]
    """Special tokens that the tokenizer puts before any text."""
    starts_twice: bool
    """The template writes them too, so that a rendered text may not be tokenized with special tokens."""
    depends_on_date: bool
    control_words: tuple[str, ...]
    is_fast: bool
    """The tokenizer has a ``tokenizer.json``."""

    @property
    def drifts(self) -> bool:
        """Whether rendering a conversation again may give other tokens than the policy read and wrote."""
        return any(one.weight is Weight.DRIFT for one in self.findings())

    def findings(self) -> list[Finding]:
        """Return the facts as sentences."""
        said = (self._turns(), self._thoughts(), self._tools(), self._tokens())
        return [Finding(weight, text) for part in said for weight, text in part]

    def _turns(self) -> Iterator[Said]:
        if not self.prefix_preserving:
            yield (
                DRIFT,
                f"A conversation that goes on does not begin with what was read and written: {self.prefix_reason}.",
            )
        else:
            yield (
                FINE,
                "A conversation that goes on begins with what the policy read and wrote before.",
            )
            if not self.same_blanks:
                yield DRIFT, "The blanks around an answer differ when it is rendered again."
            elif not self.same_tokens:
                yield (
                    NOTE,
                    "The words are the same then, but some of their tokens differ; sampled tokens are kept.",
                )
        match self.answers:
            case Shown.KEPT:
                yield FINE, "Answers are shown as they are."
            case Shown.TRIMMED:
                yield NOTE, "Blanks at the ends of an answer are dropped in later turns."
            case _:
                yield DRIFT, f"Answers are {self.answers} in later turns."
        if self.system is not Shown.KEPT:
            yield NOTE, f"A system message is {self.system}."
        if self.default_system:
            yield (
                NOTE,
                f"Without a system message the template writes one of its own: {self.default_system!r:.100}.",
            )
        if self.depends_on_date:
            yield (
                DRIFT,
                "The template writes the date of the day, so that equal conversations differ from day to day.",
            )

    def _thoughts(self) -> Iterator[Said]:
        if self.thoughts is None:
            yield FINE, "No form of thoughts is known for this tokenizer."
            return
        if self.thoughts is Shown.KEPT:
            yield FINE, "Thoughts of earlier turns stay."
        else:
            yield (
                DRIFT,
                f"Thoughts of earlier turns are {self.thoughts}: rendered again, the turn forks.",
            )
        before_calls = self.thoughts_in_tool_cycles
        if before_calls is Shown.KEPT:
            yield FINE, "A thought before a call stays while results of tools follow."
        elif before_calls is not None:
            yield (
                DRIFT,
                f"A thought before a call is {before_calls} when the tool's result follows.",
            )
        if self.opens_thought:
            yield NOTE, "The generation prompt begins a thought."
        if self.adds_thought:
            yield NOTE, "The last answer is shown with an empty thought where it has none."

    def _tools(self) -> Iterator[Said]:
        if self.tools is not Shown.KEPT:
            yield NOTE, f"Schemas of tools are {self.tools}."
            return
        yield (
            FINE,
            f"Tools are shown; calls are read as {self.call_form or 'no form that is known'}.",
        )
        if self.tools_move:
            yield DRIFT, "The tools move to another place with each turn."
        if self.tool_results is not Shown.KEPT:
            yield NOTE, f"Results of tools are {self.tool_results}."
        if self.calls is not Shown.KEPT:
            yield DRIFT, f"Arguments of earlier calls are {self.calls} when rendered again."

    def _tokens(self) -> Iterator[Said]:
        stops = " ".join(self.stops) or "none"
        end = self.end_of_turn or "no special token"
        if self.end_begins_next:
            end += ", by which the user's next turn begins"
        if self.end_of_calls:
            end += f" (one of calls with {self.end_of_calls})"
        if self.end_is_stop:
            yield FINE, f"A turn ends with {end}. It ends a generation (stop tokens: {stops})."
        else:
            yield DRIFT, f"A turn ends with {end}. It ends no generation (stop tokens: {stops})."
        yield FINE, f"The policy writes behind {self.generation_prompt!r}."
        if self.starts_twice:
            yield (
                NOTE,
                f"The template and the tokenizer both write {' '.join(self.starts)}: a rendered text is not to be "
                "tokenized with special tokens.",
            )
        if not self.is_fast:
            yield (
                NOTE,
                "The tokenizer is written in Python: added tokens that are not special may become tokens in texts.",
            )
