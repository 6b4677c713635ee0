"""An answer of the policy by itself: what an engine has to return, which tokens are actions, and the trajectory of an
episode that has no other answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Stop, Trajectory, Turn
from rlhf_core.contracts.engine import Completion
from rlhf_core.errors import RolloutError
from rlhf_core.media.spans import MediaSpan

MAX_MASKED = 1e-3
"""Probability that a grammar may take away at a token that still is an action: the ratio of the trainer's probability
to the sampler's is off by as much there."""


def single_answer(
    uid: Uid,
    prompt_ids: NDArray[np.int32],
    completion: Completion,
    *,
    one_token_turns: bool = False,
    media: Sequence[MediaSpan] = (),
) -> list[Trajectory]:
    """Return the trajectory of an episode of one request, equal to that of an ``EpisodeGraph`` with nothing else.

    A grammar that left no token to the policy leaves no trajectory.

    Args:
        uid: name of the episode, with segment 0.
        prompt_ids: (T,) all tokens that the engine read.
        one_token_turns: True: the run's answers have one token at most, so that one which hit that limit is whole.
        media: images of the prompt.

    Raises:
        RolloutError: as from ``check_answer``.
    """
    # Tokens that a grammar alone chose are no actions: there was nothing to learn about them.
    check_answer(uid, 0, len(prompt_ids), completion)
    learned, routes = learned_tokens(completion), completion.expert_routes
    if not learned.any():
        return []
    start, token_ids = len(prompt_ids), np.concatenate([prompt_ids, completion.token_ids])
    stop = stop_of(completion, one_token_turns)
    # The engine never reads the last token, so it has no routes there.
    if routes is not None:
        routes = np.pad(routes, ((0, 1), (0, 0), (0, 0)), constant_values=-1)
    return [
        Trajectory(
            uid=uid,
            token_ids=token_ids,
            action_mask=np.concatenate([np.zeros(start, dtype=bool), learned]),
            rollout_logprobs=completion.logprobs[learned],
            weight_version=completion.weight_version[learned],
            turns=(Turn(start=start, end=len(token_ids), stop=stop),),
            media=tuple(media),
            routes=routes,
        )
    ]


def learned_tokens(completion: Completion) -> NDArray[np.bool_]:
    """Return (A,) which tokens of an answer are actions: all, or those at which a grammar changed next to nothing.

    Below a grammar a token is drawn from p(a) / Z, where Z is the mass of what was allowed. The trainer has log p, so
    log-probs and their gradients are those of the draw where log Z is 0; where the grammar left one token, there was
    nothing to decide. Which tokens are left out depends on what was read alone, never on what was drawn, so the policy
    gradient over the others is not biased.
    """
    mass = completion.allowed_mass
    if mass is None:
        return np.ones(len(completion.token_ids), dtype=bool)
    return mass >= 1.0 - MAX_MASKED


def stop_of(completion: Completion, one_token_turns: bool) -> Stop:
    """Return why a turn ended, as far as the engine knows it."""
    is_whole = one_token_turns and completion.stop is Stop.LENGTH
    return Stop.ONE_TOKEN if is_whole else completion.stop


def check_answer(
    uid: Uid, number: int, num_read: int, completion: Completion, layers: tuple[int, ...] = ()
) -> None:
    """Check what an engine returned for a request.

    Args:
        uid: name of the episode.
        number: number of the request in its episode, from 0.
        num_read: number of tokens of its input.
        layers: layers with experts, and experts of a token, as earlier routes of the episode have them; empty: there
            were none.

    Raises:
        RolloutError: the input is empty, or the engine returned no tokens, arrays of different lengths, or routes
            that are not those of the tokens.
    """
    count, num_logprobs = len(completion.token_ids), len(completion.logprobs)
    num_versions, routes = len(completion.weight_version), completion.expert_routes
    if not num_read:
        raise RolloutError(
            f"{uid}, request {number}: the input is empty; expected at least one token, from which the policy goes on",
            code="rollout/empty-input",
        )
    if not count or not count == num_logprobs == num_versions:
        raise RolloutError(
            f"{uid}, request {number}: the engine returned {count} tokens, {num_logprobs} log-probs and "
            f"{num_versions} versions (stop: {completion.stop}); expected the same number of each, and at least one",
            code="engine/counts-differ",
        )
    if routes is None:
        return
    wanted = (num_read + count - 1, *(layers or routes.shape[1:]))
    if routes.ndim != 3 or routes.shape != wanted:
        raise RolloutError(
            f"{uid}, request {number}: the engine returned routes of shape {routes.shape} for {num_read} tokens of the "
            f"input and {count} of the answer; expected (tokens but the last, layers with experts, experts of a "
            f"token), here {wanted}",
            code="engine/shape-of-routes",
        )
