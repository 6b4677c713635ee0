"""Seconds of a step whose responses have different lengths, by how generation and training follow each other.

On-policy, a step waits for its longest response, which the engine decodes nearly alone. With ``rollout.max_staleness``
k and ``rollout.in_flight_updates`` the places of responses that have ended are taken by those of later steps, so the
engine stays full; a response may then take as long as k + 1 steps generate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from .phases import GENERATION, SYNC, concurrency, decoding_seconds, engine_rates
from .setting import Phase, Setting
from .work import Decoding, attention_flops, decode, decode_step_seconds, forward_flops, prompts

AHEAD = (1, 2, 4, 8)
"""Values of ``rollout.max_staleness`` that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One order of generation and training, at measured rates; what was not measured counts at its limit."""

    flags: tuple[str, ...]
    """Options that choose it."""
    generation_s: float
    """Seconds in which the engines work for one step."""
    rest_s: float
    """Seconds of all other phases but the weight sync."""
    step_s: float
    waits: bool
    """Whether the longest response sets the step, and not the work."""


def response_lengths(count: int, mean: float, spread: float, longest: int) -> list[int]:
    """Return the quantiles (i + 1/2) / n of a log-normal distribution, each at least 1 and at most ``longest``.

    ``exp(m + s z)``, where z are quantiles of the normal distribution, s the spread and ``m = log(mean) - s^2 / 2``.
    """
    middle = math.log(mean) - spread**2 / 2
    quantile = NormalDist().inv_cdf
    drawn = (math.exp(middle + spread * quantile((i + 0.5) / count)) for i in range(count))
    return [max(1, min(longest, round(length))) for length in drawn]


def schedules(setting: Setting, phases: Sequence[Phase], *, sleeps: bool) -> tuple[Schedule, ...]:
    """Return the schedules that a run can have, the fastest first; none where all responses have one length.

    Args:
        phases: those of a step, computed for responses of the mean length.
        sleeps: whether the engine sleeps while roles compute, beside which nothing can be generated ahead.
    """
    if not phases or not setting.workload.spread:
        return ()
    copy = _Copy.of(setting)
    named = {phase.name: phase.seconds for phase in phases}
    sync = named.get(SYNC, 0.0)
    prefill = sum(named.get(name, 0.0) for name in GENERATION if name != "decode")
    rest = sum(named.values()) - sync - sum(named.get(name, 0.0) for name in GENERATION)
    shares_gpus = setting.placement.colocated

    alone = prefill + copy.to_the_last()
    found = [_joined((), alone, rest, sync, in_turn=True)]
    if sleeps:
        return tuple(found)
    if not shares_gpus:
        ahead = ("--rollout.max_staleness", "1")
        found.append(_joined(ahead, alone, rest, sync, in_turn=False))
    steady = prefill + copy.always_full()
    for steps in AHEAD:
        flags = ("--rollout.max_staleness", str(steps), "--rollout.in_flight_updates")
        longest = copy.longest() / (steps + 1)
        found.append(_joined(flags, steady, rest, sync, in_turn=shares_gpus, longest=longest))
    return tuple(sorted(found, key=lambda schedule: schedule.step_s))


def _joined(
    flags: tuple[str, ...],
    generation: float,
    rest: float,
    sync: float,
    *,
    in_turn: bool,
    longest: float = 0.0,
) -> Schedule:
    """Return a schedule; ``longest`` is the least generation that a step has to have for its longest response."""
    made = max(generation, longest)
    work = made + rest if in_turn else max(made, rest)
    without = generation + rest if in_turn else max(generation, rest)
    return Schedule(
        flags=flags, generation_s=made, rest_s=rest, step_s=work + sync, waits=work > without
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """One copy of the engine's model and its share of a step's responses."""

    setting: Setting
    lengths: list[int]

    @classmethod
    def of(cls, setting: Setting) -> _Copy:
        work = setting.workload
        mine = -(-setting.drawn_prompts // setting.copies) * work.samples
        lengths = response_lengths(mine, work.response_tokens, work.spread, work.longest_response)
        random.Random(0).shuffle(lengths)  # nobody knows them in a first epoch
        return cls(setting=setting, lengths=lengths)

    def to_the_last(self) -> float:
        """Return the seconds until the last response has ended."""
        setting = self.setting
        shape = setting.roles["policy"].shape
        prompt = setting.workload.prompt_tokens
        done = decode(shape, self.lengths, prompt, concurrency(setting), engine_rates(setting))
        return decoding_seconds(setting, done)

    def always_full(self) -> float:
        """Return the seconds for as many tokens while no place is ever empty, and for keys that are computed again.

        A running response is ``E[R^2] / (2 E[R])`` tokens long on average, since a long one runs for longer. vLLM
        computes the keys of all that run again for each new version of the weights.
        """
        setting = self.setting
        places = concurrency(setting)
        seconds = self._full(places, sum(self.lengths) / places)
        if setting.engine.vllm is None:
            return seconds
        shape = setting.roles["policy"].shape
        again = forward_flops(shape, prompts(places, round(self._context)))
        return seconds + again / engine_rates(setting).flops

    def longest(self) -> float:
        """Return the seconds of the longest response in a full engine."""
        return self._full(concurrency(self.setting), max(self.lengths))

    @property
    def _context(self) -> float:
        squares = sum(length**2 for length in self.lengths)
        return self.setting.workload.prompt_tokens + squares / (2 * sum(self.lengths))

    def _full(self, places: int, steps: float) -> float:
        shape, rates = self.setting.roles["policy"].shape, engine_rates(self.setting)
        read = places * self._context
        keys = max(
            rates.kv_token_bytes * (read + places) / rates.bandwidth,
            attention_flops(shape, round(read)) / rates.flops,
        )
        done = Decoding(
            seconds=steps * (decode_step_seconds(shape, places, rates) + keys),
            steps=round(steps),
            requests=round(steps * places),
        )
        return decoding_seconds(self.setting, done)


def described(found: Sequence[Schedule]) -> Iterator[str]:
    """Yield the lines of a report: a table of the schedules, and the options of the fastest."""
    yield f"{'schedules, seconds':60}{'generation':>12}{'rest':>8}{'step':>8}"
    for one in found:
        name = " ".join(one.flags) or "on-policy: each step waits for its longest response"
        waits = "  the longest response sets it" if one.waits else ""
        yield f"{name:60}{one.generation_s:>12.2f}{one.rest_s:>8.2f}{one.step_s:>8.2f}{waits}"
