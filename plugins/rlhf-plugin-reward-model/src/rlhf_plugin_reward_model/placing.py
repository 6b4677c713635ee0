"""Places of a response's steps among the action tokens of the policy that wrote it.

The policy's tokens decide: they are decoded as the run decodes them, and never tokenized again. A step's place is the
token that holds its last character that is not blank; the separator behind it comes later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlhf_core import ConfigError, RewardError
from rlhf_core.contracts import RewardRequest
from rlhf_data import reach_hub

from .steps import ResponseStep


def load_policy_tokenizer(path: str, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the option ``policy_tokenizer``.

    Raises:
        ConfigError: there is none at the path.
    """
    reach_hub(path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy_tokenizer {path}: expected a folder or hub name with a tokenizer ({error})",
            code="reward-model/no-tokenizer",
        ) from error
    return tokenizer


def last_actions(
    request: RewardRequest, steps: Sequence[ResponseStep], tokenizer: PreTrainedTokenizerBase
) -> list[int | None]:
    """Return for each step the index of its last action token among the sample's actions; None if it has none, because
    the environment wrote all of it.

    Args:
        steps: steps of the request's response.
        tokenizer: that of the policy.

    Raises:
        RewardError: with this tokenizer the sampled tokens do not read as the response.
    """
    start = request.turns[0].start
    mask = request.action_mask[start:]
    before = [0, *accumulate(mask)]  # number of actions before each token
    holder = _holder(request.token_ids[start:], request.response, tokenizer)
    places: list[int | None] = []
    for step in steps:
        token = holder(step.end - 1)
        if not mask[token]:
            # The environment wrote the end; the policy may have written what comes before.
            own = range(token, holder(step.start) - 1, -1)
            token = next((index for index in own if mask[index]), -1)
        places.append(before[token] if token >= 0 else None)
    return places


def _holder(
    ids: Sequence[int], response: str, tokenizer: PreTrainedTokenizerBase
) -> Callable[[int], int]:
    """Return a function from the index of a character of the response to that of the token which completes it."""

    def text(count: int) -> str:
        decoded: str = tokenizer.decode(
            list(ids[:count]), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return decoded

    def holder(character: int) -> int:
        beginning = response[: character + 1]
        counts = range(len(ids) + 1)
        return bisect_left(counts, True, key=lambda count: text(count).startswith(beginning)) - 1

    try:
        read = text(len(ids))
    except (OverflowError, TypeError, KeyError, IndexError):
        read = ""
    if read != response:
        raise RewardError(
            "the sampled tokens do not read as the response with this tokenizer, so steps have no place among them; "
            "expected the policy's. Set policy_tokenizer to the folder or hub name of the policy",
            code="reward-model/other-tokens",
        )
    return holder
