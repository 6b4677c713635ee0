"""From a request to the tokens that the engine reads: those of an earlier call and what is new, or a new rendering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_core import DataError
from rlhf_core.contracts import Message, Renderer, Stop, Task

from ..dialects.model_request import ModelRequest
from ..dialects.problems import RequestProblem
from .calls import SampledCall
from .histories import Histories
from .identity import chain_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """Tokens of a request."""

    token_ids: NDArray[np.int32]
    """(T,)"""
    parent: SampledCall | None
    """The call that they go on with."""
    showed_all: bool = False
    """The template had to show the whole conversation to tell what follows that call's answer."""


class Rendering:
    """Renders the requests of one episode.

    Args:
        keeps_thoughts: tokens of thoughts stay where the client or the template leaves them out.
    """

    def __init__(self, task: Task, renderer: Renderer, *, keeps_thoughts: bool) -> None:
        self.histories = Histories(keeps_thoughts=keeps_thoughts)
        self._task, self._renderer, self._keeps_thoughts = task, renderer, keeps_thoughts
        self._first = chain_of((), task.messages)[-1] if task.messages else None
        self._texts: dict[str, tuple[NDArray[np.int32], SampledCall | None]] = {}
        if task.prompt_ids:
            text = renderer.decode(task.prompt_ids, skip_special_tokens=False)
            self._texts[text] = (np.asarray(task.prompt_ids, dtype=np.int32), None)

    def input_of(self, request: ModelRequest) -> ModelInput:
        """Return the tokens that the engine is to read.

        Raises:
            RequestProblem: the chat template refuses the messages, or they end with an answer.
        """
        if request.prompt is not None:
            return self._of_prompt(request.prompt)
        messages = request.messages
        if messages[-1]["role"] == "assistant":
            raise RequestProblem(
                "the last message is the assistant's; expected one of the user or of a tool, for begun answers are not "
                "gone on with",
                code="prefill_unsupported",
                parameter="messages",
            )
        try:
            return self._of_messages(messages, request)
        except DataError as error:
            raise RequestProblem(str(error), code="template", parameter="messages") from error

    def remember(self, request: ModelRequest, call: SampledCall, text: str) -> None:
        """Let later requests go on with a call.

        Args:
            text: the answer's text, as a client of completions got it.
        """
        if request.prompt is None:
            self.histories.add(request.messages, request.tools, call)
        elif isinstance(request.prompt, str):
            self._texts.setdefault(request.prompt + text, (call.path_ids, call))

    def _of_messages(self, messages: Sequence[Message], request: ModelRequest) -> ModelInput:
        found = self.histories.longest(messages, request.tools)
        if found is not None:
            call = found.call
            extended = self._renderer.extend(
                [*messages[: found.length - 1], call.message],
                call.path_ids.tolist(),
                messages[found.length :],
                ended=call.stop is Stop.EOS,
                tools=request.tools,
                as_template=not self._keeps_thoughts,
            )
            return ModelInput(
                token_ids=np.asarray(extended.token_ids, dtype=np.int32),
                parent=None if extended.forked else call,
                showed_all=extended.showed_all,
            )
        if (
            self._task.prompt_ids
            and not request.tools
            and chain_of((), messages)[-1] == self._first
        ):
            token_ids: Sequence[int] = self._task.prompt_ids
        else:
            token_ids = self._renderer.render(messages, request.tools)
        return ModelInput(token_ids=np.asarray(token_ids, dtype=np.int32), parent=None)

    def _of_prompt(self, prompt: str | tuple[int, ...]) -> ModelInput:
        if not isinstance(prompt, str):
            return ModelInput(token_ids=np.asarray(prompt, dtype=np.int32), parent=None)
        known = max((text for text in self._texts if prompt.startswith(text)), key=len, default="")
        before, parent = self._texts.get(known, (np.zeros(0, dtype=np.int32), None))
        rest = prompt[len(known) :]
        new = np.asarray(self._renderer.encode(rest) if rest else (), dtype=np.int32)
        return ModelInput(token_ids=np.concatenate([before, new]), parent=parent)
