"""From a request to the tokens that the engine reads: those of an earlier call and what is new, or a new rendering.

Templates write one marker for each image. Earlier tokens are kept with markers too, and the tokens of images are put in
their places once, just before the engine reads them; so no sequence is expanded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_core import DataError
from rlhf_core.contracts import Message, Renderer, Stop, Task
from rlhf_core.media import ImageReader, MediaProblem, MediaRef, references_in

from ..dialects.model_request import ModelRequest
from ..dialects.problems import RequestProblem
from .calls import ModelInput, SampledCall
from .histories import Histories
from .identity import chain_of, start_of


class _KnownText(NamedTuple):
    """Tokens behind a text that a client of completions may go on with."""

    marked_ids: NDArray[np.int32]
    images: tuple[MediaRef, ...]
    call: SampledCall | None


class Rendering:
    """Renders the requests of one episode.

    Args:
        images: gives images their tokens; None: the policy reads text alone.
        keeps_thoughts: tokens of thoughts stay where the client or the template leaves them out.
    """

    def __init__(
        self, task: Task, renderer: Renderer, images: ImageReader | None, *, keeps_thoughts: bool
    ) -> None:
        self.histories = Histories(keeps_thoughts=keeps_thoughts)
        self._task, self._renderer, self._images = task, renderer, images
        self._keeps_thoughts = keeps_thoughts
        self._first = _digest_of(task.messages) if task.messages else None
        self._texts: dict[str, _KnownText] = {}
        if task.prompt_ids:
            text = renderer.decode(task.prompt_ids, skip_special_tokens=False)
            self._texts[text] = _KnownText(_array(task.prompt_ids), task.media, None)

    def input_of(self, request: ModelRequest) -> ModelInput:
        """Return what the engine is to read.

        Raises:
            RequestProblem: the chat template refuses the messages, they end with an answer, or images and their places
                differ.
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
            return self._of_messages(messages, request, self.renderer_of(request))
        except DataError as error:
            raise RequestProblem(str(error), code="template", parameter="messages") from error

    def renderer_of(self, request: ModelRequest) -> Renderer:
        """Return the renderer with the variables that a request gives the chat template.

        Raises:
            RequestProblem: the template does not read one of them.
        """
        if not request.template_kwargs:
            return self._renderer
        try:
            return self._renderer.with_template_kwargs(request.template_kwargs)
        except DataError as error:
            raise RequestProblem(
                str(error), code="unknown_template_variable", parameter="chat_template_kwargs"
            ) from error

    def remember(self, request: ModelRequest, call: SampledCall, text: str) -> None:
        """Let later requests go on with a call.

        Args:
            text: the answer's text, as a client of completions got it.
        """
        if request.prompt is None:
            self.histories.add(request, call)
        elif isinstance(request.prompt, str):
            known = _KnownText(call.marked_path_ids, call.read.images, call)
            self._texts.setdefault(request.prompt + text, known)

    def _of_messages(
        self, messages: Sequence[Message], request: ModelRequest, renderer: Renderer
    ) -> ModelInput:
        images = references_in(messages)
        found = self.histories.longest(request)
        if found is not None:
            call = found.call
            extended = renderer.extend(
                [*messages[: found.length - 1], call.message],
                call.marked_path_ids.tolist(),
                messages[found.length :],
                ended=call.stop is Stop.EOS,
                tools=request.tools,
                as_template=not self._keeps_thoughts,
            )
            return self._input(
                extended.token_ids,
                images,
                parent=None if extended.forked else call,
                showed_all=extended.showed_all,
            )
        if (
            self._task.prompt_ids
            and not request.tools
            and not request.template_kwargs
            and _digest_of(messages) == self._first
        ):
            token_ids: Sequence[int] = self._task.prompt_ids
        else:
            token_ids = renderer.render(messages, request.tools)
        return self._input(token_ids, images)

    def _of_prompt(self, prompt: str | tuple[int, ...]) -> ModelInput:
        if not isinstance(prompt, str):
            return self._input(prompt, ())
        known = max((text for text in self._texts if prompt.startswith(text)), key=len, default="")
        nothing = _KnownText(np.zeros(0, dtype=np.int32), (), None)
        before, images, parent = self._texts.get(known, nothing)
        rest = prompt[len(known) :]
        new = _array(self._renderer.encode(rest) if rest else ())
        return self._input(np.concatenate([before, new]), images, parent=parent)

    def _input(
        self,
        marked_ids: Sequence[int] | NDArray[np.int32],
        images: Sequence[MediaRef],
        *,
        parent: SampledCall | None = None,
        showed_all: bool = False,
    ) -> ModelInput:
        """Return tokens with one marker for each image as the engine reads them."""
        marked = _array(marked_ids)
        if self._images is None:
            return ModelInput(
                token_ids=marked, marked_ids=marked, parent=parent, showed_all=showed_all
            )
        try:
            token_ids, media = self._images.expand(marked.tolist(), images)
        except MediaProblem as problem:
            code = problem.kind.replace(" ", "_")
            raise RequestProblem(str(problem), code=code, parameter="messages") from problem
        return ModelInput(
            token_ids=_array(token_ids),
            marked_ids=marked,
            media=media,
            parent=parent,
            showed_all=showed_all,
        )


def _digest_of(messages: Sequence[Message]) -> bytes:
    return chain_of(start_of(()), messages)[-1]


def _array(token_ids: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
    return np.asarray(token_ids, dtype=np.int32)
