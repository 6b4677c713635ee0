"""Groups that were played: their episodes as samples for the rewards, which score each episode once.

An episode of several segments is scored by the segment in which it ended. Its reward is the reward of all its segments;
parts of it on single actions stand in the scored segment alone, and in the others on their last action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..batch.task import Task, Uid
from ..batch.trajectory import Trajectory
from ..contracts.executor import Renderer
from ..contracts.reward import RewardRequest
from ..errors import RolloutError
from ..media.reader import ImageReader
from ..media.sample_image import sample_images
from ..rewards.panel import SampleScore


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """The episodes of one prompt, before they are scored."""

    task: Task
    trajectories: Sequence[Trajectory]
    """All segments of the episodes that were kept."""
    left_out: Mapping[int, str]
    """Sample of each episode that the executor left out -> the reason."""

    @property
    def num_actions(self) -> int:
        """Number of tokens that the policy wrote."""
        return sum(len(one.rollout_logprobs) for one in self.trajectories)

    @property
    def scored(self) -> list[Trajectory]:
        """The segment of each episode that is scored, in the order in which the episodes came."""
        by_sample: dict[int, Trajectory] = {}
        for one in self.trajectories:
            best = by_sample.setdefault(one.uid.sample, one)
            if (one.is_final, one.uid.segment) >= (best.is_final, best.uid.segment):
                by_sample[one.uid.sample] = one
        return list(by_sample.values())

    def lost(self, samples: range) -> dict[str, int]:
        """Return the number of episodes among ``samples`` that were left out, by reason."""
        return dict(Counter(why for sample, why in self.left_out.items() if sample in samples))


def check_episodes(
    task: Task, trajectories: Sequence[Trajectory], samples: range, left_out: Mapping[Uid, str]
) -> None:
    """Check that an executor returned, or left out, exactly the episodes that it was asked for.

    Raises:
        RolloutError: it did not, or a segment has no action.
    """
    found = {one.uid._replace(segment=0) for one in trajectories}
    expected = {task.uid._replace(sample=sample) for sample in samples}
    if found & left_out.keys() or found | left_out.keys() != expected:
        raise RolloutError(
            f"the rollout executor returned episodes {sorted(map(str, found))} and left out "
            f"{sorted(map(str, left_out))} for task {task.uid}; expected {len(samples)} of them in one or the other, "
            f"{task.uid} with sample {samples[0]} to {samples[-1]}"
        )
    for trajectory in trajectories:
        if not trajectory.turns:
            raise RolloutError(
                f"the rollout executor returned {trajectory.uid} without a single action token; expected at least one, "
                "for there is nothing else to train on. Leave such segments out."
            )


def requests_of(
    groups: Sequence[PlayedGroup], renderer: Renderer, images: ImageReader | None = None
) -> list[RewardRequest]:
    """Return one request for each episode. Its prompt is the text before the first action, which an environment may
    have written.

    Args:
        images: took the episodes' images in; None: the policy reads text alone.
    """
    played = [(group.task, trajectory) for group in groups for trajectory in group.scored]
    tokens = [trajectory.token_ids.tolist() for _, trajectory in played]
    starts = [trajectory.turns[0].start for _, trajectory in played]
    # Samples of a group share their prompt, and so its text.
    prompts = [tuple(row[:start]) for row, start in zip(tokens, starts, strict=True)]
    different = list(dict.fromkeys(prompts))
    decoded = renderer.decode_batch(different, skip_special_tokens=False)
    text_of = dict(zip(different, decoded, strict=True))
    responses = renderer.decode_batch(
        [row[start:] for row, start in zip(tokens, starts, strict=True)], skip_special_tokens=True
    )
    return [
        RewardRequest(
            uid=str(trajectory.uid),
            row=task.row,
            prompt=text_of[prompt],
            response=response,
            token_ids=tuple(row),
            action_mask=tuple(trajectory.action_mask.tolist()),
            turns=trajectory.turns,
            truncated=trajectory.truncated,
            media=sample_images(trajectory.media, images),
        )
        for (task, trajectory), row, prompt, response in zip(
            played, tokens, prompts, responses, strict=True
        )
    ]


def rewarded(group: PlayedGroup, scores: Sequence[SampleScore]) -> list[Trajectory]:
    """Return all segments of a group with the scores of their episodes.

    Raises:
        RolloutError: a reward and a reward of the executor's own have one name.
    """
    of_sample = {
        one.uid.sample: (one.uid, score) for one, score in zip(group.scored, scores, strict=True)
    }
    rows = []
    for row in group.trajectories:
        scored, score = of_sample[row.uid.sample]
        if twice := row.rewards.keys() & score.rewards.keys():
            raise RolloutError(
                f"{row.uid}: both the environment and --reward give a reward named {min(twice)!r}; expected different "
                "names. Rename the environment's."
            )
        given = score.reward or 0.0
        rows.append(
            replace(
                row,
                reward=given if row.reward is None else row.reward + given,
                rewards={**row.rewards, **score.rewards},
                step_rewards=score.step_rewards if row.uid == scored else (),
                metrics={**row.metrics, **score.metrics},
            )
        )
    return rows


def with_environment_metrics(row: Trajectory, environment: str) -> Trajectory:
    """Return a scored row of a run with several environments: its reward and its metrics are there a second time under
    the name of its environment, so that each environment has means of its own."""
    numbers = {"reward": row.total_reward, **row.metrics}
    named = {f"{environment}/{name}": value for name, value in numbers.items()}
    return replace(row, metrics={**row.metrics, **named})
