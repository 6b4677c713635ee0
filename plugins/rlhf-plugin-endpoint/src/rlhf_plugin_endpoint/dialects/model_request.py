"""A request to the policy and its answer, in the form that all dialects share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import Message, Stop, ToolCall

from .answer_form import AnswerForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A client's question to the policy."""

    messages: tuple[Message, ...] = ()
    """The conversation, in the form of chat templates: roles ``system``, ``user``, ``assistant`` and ``tool``; contents
    are texts, or with images parts, whose images are references to the run's store; an assistant's ``tool_calls`` are
    OpenAI's, its ``reasoning_content`` what it thought."""
    prompt: str | tuple[int, ...] | None = None
    """Text or tokens to go on with, instead of messages."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions that the policy may call, in OpenAI's form for chats."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, such as ``enable_thinking``."""
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    """Number of answers."""
    logprobs: bool = False
    """The client reads log-probs, so they have to be measured."""
    form: AnswerForm | None = None
    """Demands on the answer; None: any text."""
    greedy: bool = False
    """Take the most probable tokens. Such an answer is read, and is no action."""
    agent: str = ""
    """Role or lineage of the agent that asks; empty: the main one, or not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """One answer of the policy."""

    name: str
    """Hexadecimal digits that name the answer in its episode: a function of what was read and of its place among
    answers to the same input."""
    prompt_ids: NDArray[np.int32]
    """(T,) tokens that the engine read."""
    token_ids: NDArray[np.int32]
    """(A,) tokens that it wrote."""
    logprobs: NDArray[np.float32]
    """(A,) their log-probs; NaN where nobody measured them."""
    token_texts: Sequence[str]
    """The text of each token; empty unless the client asked for log-probs."""
    text: str
    """The whole answer, cut before a stop string that the client named."""
    reasoning: str
    content: str
    """The answer without reasoning and tool calls."""
    tool_calls: tuple[ToolCall, ...]
    """With ids that are unique in the episode. Clients get them with the prefix of their dialect."""
    stop: Stop
    stop_string: str | None = None
    """The stop string of the client at which the answer ended."""

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for why the answer ended."""
        if self.stop is Stop.LENGTH:
            return "length"
        return "tool_calls" if self.tool_calls else "stop"
