"""One episode of ``multi_turn``: the policy and its environment take turns until one of the ends is reached.

The requests are nodes of an ``EpisodeGraph``. What the policy reads before a turn is all that was read and sampled so
far and the new observation, so an episode is one path. With ``history`` as_template, and where an image moves out of
the window of ``last_images``, a turn may fork.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlhf_core import EnvironmentFailure, UnknownTokenError
from rlhf_core.contracts import (
    Action,
    Completion,
    EpisodeEnd,
    GenerationRequest,
    Observation,
    RolloutContext,
    StepResult,
    Stop,
    Task,
    Trajectory,
    Uid,
)
from rlhf_core.media import Expanded, MediaRef, references_in
from rlhf_episodes import EpisodeGraph, GuardedEnvironment, RequestNode

from .budgets import Clock, OutOfTime, limited
from .config import MultiTurnConfig
from .conversation import Conversation
from .image_window import window_of
from .images import admitted, check_sampled, has_room_for_images
from .observing import (
    all_tokens,
    first_images,
    first_prompt,
    first_tokens,
    next_prompt,
    unreadable,
)


class Episode:
    """The course of one episode, and what is recorded of it."""

    def __init__(self, uid: Uid, context: RolloutContext, config: MultiTurnConfig) -> None:
        self._context = context
        self._config = config
        self._clock = Clock(uid, config)
        one_token = context.sampling.max_new_tokens == 1
        self._graph = EpisodeGraph(uid, one_token_turns=one_token)
        self._window = window_of(config, context)
        self._tokens: list[int] = []
        """All tokens so far, with one marker for each image."""
        self._images: list[MediaRef] = []
        """All images so far, in the order of their markers."""
        self._prompt = Expanded((), ())
        """All that the policy reads before its next turn: ``_tokens`` with all tokens of the images that are shown."""
        self._num_written = 0
        self._last: RequestNode | None = None
        """The policy's last turn."""
        self.num_turns = 0
        self._num_shown_whole = 0
        """Turns before which the template had to show the whole chat."""
        self._conversation: Conversation
        self._metrics: dict[str, float] = {}
        self._turn_rewards: Counter[str] = Counter()
        self._episode_rewards: dict[str, float] = {}

    async def play(self, play: GuardedEnvironment, task: Task) -> EpisodeEnd:
        """Play the episode, and return why it ended.

        Raises:
            EnvironmentFailure: the environment failed.
            OutOfTime: time ran out before the policy had a turn.
        """
        try:
            end = await self._play(play, task)
        except OutOfTime:
            if not self.num_turns:
                raise
            return EpisodeEnd.TIMEOUT
        self._episode_rewards = await play.episode_rewards()
        return end

    def fail(self, reward: float) -> None:
        """Put a reward on the last turn of an episode whose environment failed after it."""
        assert self._last is not None
        self._graph.reward(self._last, reward)

    def trajectories(self, end: EpisodeEnd) -> list[Trajectory]:
        """Return the episode's segments."""
        metrics = self._metrics | {
            f"env/reward/{name}": value for name, value in self._turn_rewards.items()
        }
        metrics |= {f"end/{one}": float(one is end) for one in EpisodeEnd}
        metrics["turns"] = float(self.num_turns)
        if self._conversation.was_chat:
            metrics["whole_chats"] = float(self._num_shown_whole)
        if self._config.history == "as_template" or self._window is not None:
            metrics |= self._graph.metrics()
        return self._graph.trajectories(metrics=metrics, rewards=self._episode_rewards)

    async def _play(self, play: GuardedEnvironment, task: Task) -> EpisodeEnd:
        uid, context = self._graph.uid, self._context
        self._clock.begin_turn()
        observation = await self._clock.bounded(play.reset(task, context.seed(0, -1)))
        try:
            observation = admitted(observation, context)
            self._conversation = Conversation(task, observation)
            self._tokens += first_tokens(uid, task, observation, context)
            self._images += first_images(task, observation)
            self._prompt = first_prompt(*self._shown(self._tokens, self._images), context)
        except EnvironmentFailure as failure:
            raise play.located(failure, "reset") from failure
        for turn in range(self._config.max_turns):
            if turn:
                self._clock.begin_turn()
            try:
                action = await self._act(turn, observation)
            except EnvironmentFailure as failure:
                raise play.located(failure, "step" if turn else "reset") from failure
            if action.stop is Stop.ABORTED:
                return EpisodeEnd.ABORTED
            if action.stop is Stop.LENGTH and self._config.end_at_cut_turn:
                return EpisodeEnd.LENGTH
            result = await self._clock.bounded(play.step(action))
            self._note(result)
            if result.done:
                return EpisodeEnd.FINISHED
            observation = result.observation
            if turn == self._config.max_turns - 1:
                return EpisodeEnd.TURNS
            try:
                has_room = self._has_room_for_images(observation) and self._read(
                    admitted(observation, context)
                )
            except EnvironmentFailure as failure:
                raise play.located(failure, "step") from failure
            if not has_room:
                return EpisodeEnd.CONTEXT
        raise AssertionError("max_turns is at least 1, so a turn returned")

    async def _act(self, turn: int, observation: Observation) -> Action:
        """Have the engine sample the policy's next turn, record it, and return it as an action.

        Raises:
            EnvironmentFailure: the observation before it has token ids that the model does not know.
        """
        context, uid = self._context, self._graph.uid
        prompt, media = self._prompt
        request = GenerationRequest(
            uid=uid,
            turn=turn,
            prompt_ids=prompt,
            media=media,
            seeds=(context.seed(uid.sample, turn),),
            sampling=limited(context.sampling, self._room, observation.sampling),
        )
        try:
            (completion,) = await self._clock.bounded(context.engine.generate(request))
        except UnknownTokenError as error:
            if observation.token_ids is None:
                raise
            raise unreadable(observation, error) from error
        if context.images is not None:
            check_sampled(uid, completion.token_ids, context.images)
        self._last = self._graph.add(prompt, completion, media=media)
        self.num_turns += 1
        return self._action(turn, prompt, completion)

    def _action(self, turn: int, prompt: Sequence[int], completion: Completion) -> Action:
        tokens = tuple(completion.token_ids.tolist())
        self._tokens += tokens
        self._prompt = Expanded((*prompt, *tokens), self._prompt.spans)
        self._num_written += len(tokens)
        conversation = self._conversation
        answer = self._context.renderer.parse(tokens, prompt_ids=prompt, tools=conversation.tools)
        conversation.answered(answer)
        return Action(
            text=answer.text,
            token_ids=tokens,
            stop=completion.stop,
            turn=turn,
            reasoning=answer.reasoning,
            content=answer.content,
            tool_calls=answer.tool_calls,
            malformed=answer.malformed,
        )

    @property
    def _room(self) -> int:
        """Tokens that the policy may still write."""
        room = self._context.max_length - len(self._prompt.token_ids)
        most = self._config.max_episode_tokens
        return room if most is None else min(room, most - self._num_written)

    def _shown(
        self, token_ids: Sequence[int], images: Sequence[MediaRef]
    ) -> tuple[Sequence[int], Sequence[MediaRef]]:
        """Return what of all tokens and images the next turn shows."""
        if self._window is None:
            return token_ids, images
        self._window.check(images)
        return self._window.applied(token_ids, images)

    def _note(self, result: StepResult) -> None:
        assert self._last is not None
        self._graph.reward(self._last, result.reward + sum(result.rewards.values()))
        self._turn_rewards.update(result.rewards)
        self._metrics |= {f"env/{name}": value for name, value in result.metrics.items()}

    def _has_room_for_images(self, observation: Observation) -> bool:
        """Return whether the episode may have the images of an observation too; if not, mark the truncation."""
        assert self._last is not None
        kept = len(self._images) if self._window is None else 0
        has_room = has_room_for_images(kept, observation, self._context)
        if not has_room:
            self._graph.mark_stop(self._last, Stop.LENGTH)
        return has_room

    def _read(self, observation: Observation) -> bool:
        """Append an observation, and return True; if this leaves no room for a turn, mark the truncation instead."""
        assert self._last is not None
        read = all_tokens(
            self._conversation,
            self._tokens,
            observation,
            self._context,
            ended=self._last.completion.stop is Stop.EOS,
            as_template=self._config.history == "as_template",
        )
        images = [*self._images, *references_in(observation.messages)]
        prompt = next_prompt(*self._shown(read.token_ids, images), self._context)
        if len(prompt.token_ids) >= self._context.max_length or self._room <= 0:
            self._graph.mark_stop(self._last, Stop.LENGTH)
            return False
        self._conversation.observed(observation)
        self._tokens, self._images, self._prompt = list(read.token_ids), images, prompt
        self._num_shown_whole += read.showed_all
        return True
