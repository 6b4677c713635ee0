"""Checks of rollout executors (``contracts.RolloutExecutor``), with an engine that writes letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from rlhf_core.batch.task import Task, Uid
from rlhf_core.batch.trajectory import Stop, Trajectory
from rlhf_core.contracts.engine import Completion, GenerationRequest, SamplingParams
from rlhf_core.contracts.environment import Action, Observation, StepResult
from rlhf_core.contracts.executor import RolloutContext

from ...fakes import FakeEngine, FakeRenderer
from ..subject import HANGS_AFTER_S, Subject, checks_in, traits

RENDERER = FakeRenderer()
SAMPLES = (0, 1, 2, 3)


class _Environment:
    """Environment of three turns, whose text is a separator and the number of the turn; no character may get lost."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation()

    async def step(self, action: Action) -> StepResult:
        text = f"\n\n<{action.turn}>\n"
        return StepResult(
            observation=Observation(text=text), reward=float(action.turn), done=action.turn == 2
        )

    async def close(self) -> None: ...


class _Engine(FakeEngine):
    """Engine that records its completions with the prompt of each."""

    def __init__(self) -> None:
        super().__init__(mean_length=5)
        self.version = 7
        self.written: list[tuple[tuple[int, ...], Completion]] = []

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        completions = await super().generate(request)
        self.written += [(request.prompt_ids, completion) for completion in completions]
        return completions


def _run(
    subject: Subject,
    samples: Sequence[int] = SAMPLES,
    *,
    max_new_tokens: int = 24,
    max_length: int = 400,
) -> tuple[list[Trajectory], _Engine]:
    engine = _Engine()
    context = RolloutContext(
        engine=engine,
        renderer=RENDERER,
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
        max_length=max_length,
        seed=lambda sample, turn: 1000 * (sample + 1) + turn + 1,
        environment=(lambda task: _Environment()) if "environment" in subject.needs else None,
    )
    task = Task(uid=Uid(0, 3), prompt_ids=tuple(RENDERER.encode("question:")), row={"answer": "x"})
    executor = subject.make()

    async def bounded() -> list[Trajectory]:
        async with asyncio.timeout(HANGS_AFTER_S):
            found: list[Trajectory] = await executor.run(task, samples, context)
            return found

    return asyncio.run(bounded()), engine


def _has_turns(subject: Subject) -> bool:
    return "environment" in subject.needs


def check_every_sample_is_there(subject: Subject) -> None:
    """Each asked-for sample gives a trajectory under the task's uid and its own number, and none else does."""
    rows, _ = _run(subject, (1, 4))
    samples = sorted({row.uid.sample for row in rows})
    assert samples == [1, 4], f"samples {samples}, expected [1, 4]"
    assert all(row.uid[:2] == (0, 3) for row in rows), f"uids {[str(row.uid) for row in rows]}"
    assert len({row.uid for row in rows}) == len(rows), "two trajectories share a uid"


def check_tokens_are_kept_as_sampled(subject: Subject) -> None:
    """Every turn holds exactly the tokens, log-probs and versions of one completion, and what precedes it in the
    sequence is exactly the engine's prompt: nothing is decoded and tokenized again."""
    rows, engine = _run(subject)
    for row in rows:
        start = 0
        for turn in row.turns:
            tokens = tuple(row.token_ids[turn.start : turn.end].tolist())
            before = tuple(row.token_ids[: turn.start].tolist())
            found = [
                completion
                for prompt, completion in engine.written
                if prompt == before and tuple(completion.token_ids.tolist()) == tokens
            ]
            assert found, f"{row.uid}: the turn at {turn.start} is no completion of what precedes"
            count = turn.end - turn.start
            span = slice(start, start + count)
            same = row.rollout_logprobs[span].tolist() == found[0].logprobs.tolist()
            assert same, f"{row.uid}: log-probs {row.rollout_logprobs[span]} are not the engine's"
            versions = row.weight_version[span].tolist()
            assert versions == found[0].weight_version.tolist(), f"{row.uid}: versions {versions}"
            assert turn.stop == found[0].stop, f"{row.uid}: {turn.stop}, engine {found[0].stop}"
            start += count


@traits(_has_turns)
def check_environment_text_is_complete(subject: Subject) -> None:
    """The environment's text stands between the turns, token by token, separators included."""
    rows, _ = _run(subject)
    for row in rows:
        for index, (turn, following) in enumerate(pairwise(row.turns)):
            between = RENDERER.decode(row.token_ids[turn.end : following.start].tolist())
            # A later segment begins with a later turn, whose reward is its number.
            number = index + int(row.turns[0].reward)
            expected = f"\n\n<{number}>\n"
            assert between == expected, f"{row.uid}: {between!r} after turn {number}: {expected!r}"


@traits(_has_turns)
def check_turn_rewards_are_at_their_turns(subject: Subject) -> None:
    """Each turn carries the reward that the environment gave for it, in one segment of its episode."""
    rows, _ = _run(subject)
    for segments in _episodes(rows):
        in_order = [[turn.reward for turn in row.turns] for row in segments]
        rewards = sorted(reward for of_row in in_order for reward in of_row)
        assert all(of_row == sorted(of_row) for of_row in in_order), (
            f"{segments[0].uid}: {in_order}"
        )
        assert rewards == [float(index) for index in range(len(rewards))], (
            f"{segments[0].uid}: {rewards}"
        )


def check_segments_are_one_episode(subject: Subject) -> None:
    """Segments of an episode are numbered from 0, at least one is final, and each has the whole reward of the episode,
    since groups and losses count episodes."""
    rows, _ = _run(subject)
    for segments in _episodes(rows):
        name = f"episode {segments[0].uid}"
        numbers = sorted(row.uid.segment for row in segments)
        assert numbers == list(range(len(segments))), f"{name}: segments {numbers}"
        assert any(row.is_final for row in segments), f"{name}: no segment is final"
        rewards = [row.total_reward for row in segments]
        assert max(rewards) - min(rewards) < 1e-4, f"{name}: rewards {rewards} of its segments"


def check_no_token_trains_twice(subject: Subject) -> None:
    """A completion is an action in one segment of its episode alone; in others that go on from it, it is read."""
    rows, _ = _run(subject)
    for segments in _episodes(rows):
        seen: dict[tuple[int, ...], Uid] = {}
        for row in segments:
            for turn in row.turns:
                # The path through a token names it: paths that go on from one turn are equal up to it.
                path = tuple(row.token_ids[: turn.end].tolist())
                assert path not in seen, (
                    f"{row.uid}: the turn at {turn.start} is an action of {seen[path]} too"
                )
                seen[path] = row.uid


def check_samples_do_not_depend_on_each_other(subject: Subject) -> None:
    """A sample is the same, whichever others are asked for with it, and a second time."""
    together, _ = _run(subject)
    alone, _ = _run(subject, (2,))
    wanted = [row.token_ids.tolist() for row in together if row.uid.sample == 2]
    assert [row.token_ids.tolist() for row in alone] == wanted, "sample 2 is another one alone"
    again, _ = _run(subject)
    for first, second in zip(together, again, strict=True):
        assert first.token_ids.tolist() == second.token_ids.tolist(), f"{first.uid} is not repeated"


def check_limits_are_kept(subject: Subject) -> None:
    """No turn and no sequence is longer than allowed, and what hits a limit is marked as truncated."""
    rows, _ = _run(subject, max_new_tokens=3)
    for row in rows:
        for turn in row.turns:
            assert turn.end - turn.start <= 3, (
                f"{row.uid}: a turn of {turn.end - turn.start} tokens"
            )
            ended = int(row.token_ids[turn.end - 1]) == RENDERER.eos_id
            assert ended or turn.stop is Stop.LENGTH, f"{row.uid}: cut off, but {turn.stop}"
    rows, _ = _run(subject, max_length=14)
    for row in rows:
        assert len(row.token_ids) <= 14, f"{row.uid}: {len(row.token_ids)} tokens, at most 14"


def _episodes(rows: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Return the trajectories of each episode, in order of their segments."""
    episodes: dict[Uid, list[Trajectory]] = {}
    for row in sorted(rows, key=lambda row: row.uid):
        episodes.setdefault(row.uid._replace(segment=0), []).append(row)
    return list(episodes.values())


CHECKS = checks_in(__name__)
