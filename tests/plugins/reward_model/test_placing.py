"""The action tokens at which steps end."""

import pytest

from rlhf_core import ConfigError, RewardError
from rlhf_core.contracts import RewardRequest, Turn
from rlhf_plugin_reward_model.placing import last_actions, load_policy_tokenizer
from rlhf_plugin_reward_model.steps import steps_of
from rlhf_testing.errors import has_code

WORDS = ["?", "So", " it", " is", " four", ".\n", "\n", ".\n\nNext", "\n\n", " 4", "<eos>", "Hint"]


@pytest.fixture(scope="module")
def words():
    """A tokenizer whose tokens are ``WORDS``, the last but one of them special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="?"))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?", eos_token="<eos>")


@pytest.fixture(scope="module")
def bytewise():
    """A tokenizer with a token for each byte, of which some characters have four."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def request_of(tokenizer, ids, *, environment=(), prompt=2):
    """A sample with ``ids`` behind a prompt; those at the places ``environment`` are not the policy's."""
    written = [index not in environment for index in range(len(ids))]
    mask = (False,) * prompt + tuple(written)
    spans, start = [], None
    for index, is_action in enumerate((*mask, False)):
        if is_action and start is None:
            start = index
        if not is_action and start is not None:
            spans.append(Turn(start=start, end=index))
            start = None
    return RewardRequest(
        uid="0.0.0.0",
        row={},
        prompt="??",
        response=tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        ),
        token_ids=(0,) * prompt + tuple(ids),
        action_mask=mask,
        turns=tuple(spans),
        truncated=False,
    )


def places(tokenizer, ids, split="\n\n", **more):
    request = request_of(tokenizer, ids, **more)
    return last_actions(request, steps_of(request.response, split), tokenizer)


def ids_of(*pieces):
    return [WORDS.index(piece) for piece in pieces]


def test_a_step_ends_with_the_token_of_its_last_character(words):
    ids = ids_of("So", " it", " is", "\n\n", " four", "\n\n", " 4", "<eos>")

    assert places(words, ids) == [2, 4, 6]


def test_a_token_may_hold_the_end_of_a_step_and_the_beginning_of_the_next(words):
    # "So it.", "Next is", " 4"
    ids = ids_of("So", " it", ".\n\nNext", " is", "\n\n", " 4")

    assert places(words, ids) == [2, 3, 5]


def test_one_token_may_end_two_steps(words):
    # "So.", "Next"
    assert places(words, ids_of("So", ".\n\nNext", "\n\n")) == [1, 1]


def test_blanks_behind_a_step_are_not_its_end(words):
    # "So." and a line break in one token, then more breaks; a piece of blanks is no step
    ids = ids_of("So", ".\n", "\n", "\n", "\n", "\n\n", " 4", "\n")

    assert places(words, ids) == [1, 6]


def test_prompt_and_environment_are_not_counted_among_the_actions(words):
    # The environment writes "Hint four" and the break behind it; the break before it is the policy's.
    ids = ids_of("So", " it", "\n\n", "Hint", " four", "\n\n", " 4", "\n\n", " is")

    assert places(words, ids, environment=(3, 4, 5)) == [1, None, 3, 5]


def test_a_step_that_the_environment_ends_counts_at_the_policys_last_token_of_it(words):
    # "So it Hint", "4": the policy wrote "So it".
    ids = ids_of("So", " it", "Hint", "\n\n", " 4")

    assert places(words, ids, environment=(2, 3)) == [1, 2]


def test_every_prompt_length_gives_the_same_places(words):
    ids = ids_of("So", "\n\n", " 4")

    assert places(words, ids, prompt=1) == places(words, ids, prompt=40) == [0, 2]


@pytest.mark.parametrize("text", ["a\n\nb", "é\n\n\N{GRINNING FACE}\n\n\N{SNOWMAN}z", "\n\na\n\n"])
def test_a_character_of_several_tokens_is_complete_with_its_last_one(bytewise, text):
    ids = bytewise(text)["input_ids"]

    found = places(bytewise, ids)

    steps = [step for step in text.split("\n\n") if step]
    ends = [text.index(step) + len(step) for step in steps]
    assert found == [len(text[:end].encode()) - 1 for end in ends]


def test_tokens_that_read_otherwise_are_another_tokenizers(words, bytewise):
    request = request_of(words, ids_of("So", " it"))

    with pytest.raises(
        RewardError,
        match=r"expected the policy's\. Set policy_tokenizer",
        check=has_code("reward-model/other-tokens"),
    ):
        last_actions(request, steps_of("So it", " "), bytewise)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="policy_tokenizer", check=has_code("reward-model/no-tokenizer")
    ):
        load_policy_tokenizer(str(tmp_path / "nothing"), trust_remote_code=False)
