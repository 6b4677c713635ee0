"""The policy behind an endpoint under test: it writes what a scenario says, and remembers what it read and wrote."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlhf_core.contracts import Stop
from rlhf_testing.fakes import EOS_ID

from .chat_format import KitRenderer

Script = Callable[[str, int], "str | Sequence[int]"]
"""``script(prompt, index)`` returns the answer to a prompt, without end-of-sequence; ``index`` counts the answers to
the same prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledAnswer:
    """One answer, as the policy sampled it."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Different for each token, and exact in float32."""
    versions: tuple[int, ...]
    """Version of the weights for each token. They change with each answer, and in the middle of it."""
    stop: Stop
    temperature: float


def _happened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True)
class ScriptedPolicy:
    """A policy that writes by a script. It is safe to use from several threads."""

    script: Script
    delay_s: float = 0.0
    """Seconds for each answer."""
    fails: bool = False
    """It raises instead of answering."""
    record: list[SampledAnswer] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    """Set once a request has come."""
    let_go: threading.Event = field(default_factory=_happened)
    """Answers wait until it is set, and then for ``delay_s``. It is set at first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _num_asked: dict[tuple[int, ...], int] = field(default_factory=dict)

    def wait(self) -> None:
        """Take as long as an answer takes; for servers that have a thread for each request."""
        self.let_go.wait()
        time.sleep(self.delay_s)

    def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
    ) -> SampledAnswer:
        """Return the next answer to a prompt, cut at a stop string or the limit.

        Raises:
            RuntimeError: the policy fails.
        """
        self.started.set()
        if self.fails:
            raise RuntimeError("the policy was told to fail")
        with self._lock:
            read = tuple(map(int, prompt_ids))
            index = self._num_asked.get(read, 0)
            self._num_asked[read] = index + 1
            renderer = KitRenderer()
            written = self.script(renderer.decode(read, skip_special_tokens=False), index)
            token_ids = renderer.encode(written) if isinstance(written, str) else list(written)
            token_ids, end = _ended(token_ids, renderer, stop, max_new_tokens)
            first = sum(len(answer.token_ids) for answer in self.record)
            answer = SampledAnswer(
                prompt_ids=read,
                token_ids=tuple(token_ids),
                logprobs=tuple(-(first + place + 1) / 1024 for place in range(len(token_ids))),
                versions=_versions(len(self.record), len(token_ids)),
                stop=end,
                temperature=temperature,
            )
            self.record.append(answer)
            return answer


def _versions(answer: int, count: int) -> tuple[int, ...]:
    return tuple(2 * answer + (2 * place >= count) for place in range(count))


def _ended(
    token_ids: list[int], renderer: KitRenderer, stop: Sequence[str], limit: int
) -> tuple[list[int], Stop]:
    for count in range(1, len(token_ids) + 1):
        text = renderer.decode(token_ids[:count])
        if any(mark in text for mark in stop):
            return token_ids[:count], Stop.STRING
        if count == limit:
            return token_ids[:count], Stop.LENGTH
    return [*token_ids, EOS_ID], Stop.EOS
