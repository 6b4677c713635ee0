from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rlhf_core.contracts import Completion, Stop, Trajectory


@pytest.fixture
def answer() -> Callable[..., Completion]:
    """Makes answers. Each token that is sampled in a test has a log-prob of its own: minus its number, in 1024ths."""
    count = 0

    def sampled(token_ids: Sequence[int], *, version: int = 0, stop: Stop = Stop.EOS) -> Completion:
        nonlocal count
        numbers = np.arange(count, count + len(token_ids))
        count += len(token_ids)
        return Completion(
            token_ids=np.array(token_ids, dtype=np.int32),
            logprobs=(-numbers / 1024).astype(np.float32),
            weight_version=np.full(len(token_ids), version, dtype=np.int32),
            stop=stop,
        )

    return sampled


def _shown(trajectory: Trajectory) -> str:
    marks = zip(trajectory.token_ids.tolist(), trajectory.action_mask.tolist(), strict=True)
    return " ".join(f"{token}!" if is_action else str(token) for token, is_action in marks)


@pytest.fixture
def shown() -> Callable[[Sequence[Trajectory]], list[str]]:
    """Tokens of each trajectory as text, actions with an exclamation mark."""
    return lambda trajectories: [_shown(one) for one in trajectories]
