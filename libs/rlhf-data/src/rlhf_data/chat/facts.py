"""Facts about a chat template: how it renders a continued conversation, in a form for people and programs."""

from __future__ import annotations

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
    """Text that ends a turn; empty: the template writes no special token there."""
    end_is_stop: bool
    """The token that ends a turn ends a generation."""
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
        return [*self._turns(), *self._thoughts(), *self._tools(), *self._tokens()]

    def _turns(self) -> list[Finding]:
        found = [
            _finding(
                self.prefix_preserving,
                "A conversation that goes on begins with what the policy read and wrote before.",
                f"A conversation that goes on does not begin with what was read and written: {self.prefix_reason}.",
            )
        ]
        if self.prefix_preserving and not self.same_blanks:
            found.append(
                Finding(
                    Weight.DRIFT, "The blanks around an answer differ when it is rendered again."
                )
            )
        elif self.prefix_preserving and not self.same_tokens:
            found.append(
                Finding(
                    Weight.NOTE,
                    "The words are the same then, but some of their tokens differ; sampled tokens are kept.",
                )
            )
        answers = {
            Shown.KEPT: (Weight.FINE, "Answers are shown as they are."),
            Shown.TRIMMED: (
                Weight.NOTE,
                "Blanks at the ends of an answer are dropped in later turns.",
            ),
        }
        other = (Weight.DRIFT, f"Answers are {self.answers} in later turns.")
        found.append(Finding(*answers.get(self.answers, other)))
        if self.system is not Shown.KEPT:
            found.append(Finding(Weight.NOTE, f"A system message is {self.system}."))
        if self.default_system:
            found.append(
                Finding(
                    Weight.NOTE,
                    f"Without a system message the template writes one of its own: {self.default_system!r:.100}.",
                )
            )
        if self.depends_on_date:
            found.append(
                Finding(
                    Weight.DRIFT,
                    "The template writes the date of the day, so that equal conversations differ from day to day.",
                )
            )
        return found

    def _thoughts(self) -> list[Finding]:
        if self.thoughts is None:
            return [Finding(Weight.FINE, "No form of thoughts is known for this tokenizer.")]
        found = [
            _finding(
                self.thoughts is Shown.KEPT,
                "Thoughts of earlier turns stay.",
                f"Thoughts of earlier turns are {self.thoughts}: rendered again, the turn forks.",
            )
        ]
        if self.thoughts_in_tool_cycles is not None:
            found.append(
                _finding(
                    self.thoughts_in_tool_cycles is Shown.KEPT,
                    "A thought before a call stays while results of tools follow.",
                    f"A thought before a call is {self.thoughts_in_tool_cycles} when the tool's result follows.",
                )
            )
        if self.opens_thought:
            found.append(Finding(Weight.NOTE, "The generation prompt begins a thought."))
        if self.adds_thought:
            found.append(
                Finding(
                    Weight.NOTE, "The last answer is shown with an empty thought where it has none."
                )
            )
        return found

    def _tools(self) -> list[Finding]:
        if self.tools is not Shown.KEPT:
            return [Finding(Weight.NOTE, f"Schemas of tools are {self.tools}.")]
        form = self.call_form or "no form that is known"
        found = [Finding(Weight.FINE, f"Tools are shown; calls are read as {form}.")]
        if self.tools_move:
            found.append(Finding(Weight.DRIFT, "The tools move to another place with each turn."))
        if self.tool_results is not Shown.KEPT:
            found.append(Finding(Weight.NOTE, f"Results of tools are {self.tool_results}."))
        if self.calls is not Shown.KEPT:
            found.append(
                Finding(
                    Weight.DRIFT,
                    f"Arguments of earlier calls are {self.calls} when rendered again.",
                )
            )
        return found

    def _tokens(self) -> list[Finding]:
        stops = " ".join(self.stops) or "none"
        found = [
            _finding(
                self.end_is_stop,
                f"A turn ends with {self.end_of_turn}, which ends a generation (stop tokens: {stops}).",
                f"A turn ends with {self.end_of_turn or 'no special token'}, which ends no generation (stop tokens: "
                f"{stops}).",
            ),
            Finding(Weight.FINE, f"The policy writes behind {self.generation_prompt!r}."),
        ]
        if self.starts_twice:
            found.append(
                Finding(
                    Weight.NOTE,
                    f"The template and the tokenizer both write {' '.join(self.starts)}: a rendered text is not to be "
                    "tokenized with special tokens.",
                )
            )
        if not self.is_fast:
            found.append(
                Finding(
                    Weight.NOTE,
                    "The tokenizer is written in Python: added tokens that are not special may become tokens in texts.",
                )
            )
        return found


def _finding(is_fine: bool, fine: str, drift: str) -> Finding:
    return Finding(Weight.FINE, fine) if is_fine else Finding(Weight.DRIFT, drift)
