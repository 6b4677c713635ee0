"""A reward model's score is read where ``rlhf rm`` trained it, in whatever form a sample comes."""

import json
from dataclasses import replace

import pytest
from tests.plugins.reward_model.conftest import plain_score, request_of, write_reward_model
from tests.released_templates import RELEASED, released_tokenizer

from rlhf_core import ConfigError
from rlhf_core.contracts import Turn
from rlhf_data import PairColumns, SequenceOptions, TokenizerRenderer, end_of_turn, load_pairs
from rlhf_plugin_reward_model.config import RewardModelConfig, ServeConfig
from rlhf_plugin_reward_model.loading import load_model
from rlhf_plugin_reward_model.reward import TextReader
from rlhf_plugin_reward_model.scoring import Scorer
from rlhf_plugin_reward_model.serving.command import tokenize_function
from rlhf_plugin_reward_model.serving.protocol import ScoreRequest
from rlhf_testing.errors import has_code

QUESTION, ANSWER = "What is 2 + 2?", "It is 4."


class Options(PairColumns, SequenceOptions):
    """Sections of ``rlhf rm``'s data."""


@pytest.fixture(params=sorted(RELEASED))
def stage(request, tmp_path):
    """A reward model with a released template, and the row of ``rlhf rm`` from which it would learn."""
    tokenizer = released_tokenizer(request.param)
    end = tokenizer.convert_tokens_to_ids(RELEASED[request.param].end)
    folder = write_reward_model(
        tmp_path / "rm",
        vocab_size=len(tokenizer),
        value_head_prefix="score",
        score_token_ids=[end],
        pad_token_id=tokenizer.pad_token_id,
        max_position_embeddings=4096,
    )
    tokenizer.save_pretrained(folder)
    row = {
        "prompt": [{"role": "user", "content": QUESTION}],
        "chosen": [{"role": "assistant", "content": ANSWER}],
        "rejected": [{"role": "assistant", "content": "It is 5."}],
    }
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row))
    pairs = load_pairs(
        (str(tmp_path / "pairs.jsonl"),),
        Options(),
        Options(),
        TokenizerRenderer(tokenizer),
        eos=tokenizer.eos_token_id,
    ).columns
    mask = pairs.action_mask[: pairs.num_tokens[0]]
    trained = int(mask.nonzero()[0][-1])
    return folder, tokenizer, pairs.token_ids[: trained + 1].tolist(), int(mask.argmax())


def sample_of(stage):
    _, tokenizer, trained, start = stage
    prompt = tokenizer.decode(trained[:start])
    return request_of(
        prompt,
        ANSWER,
        row={"prompt": [{"role": "user", "content": QUESTION}]},
        token_ids=tuple(trained),
        action_mask=tuple(place >= start for place in range(len(trained))),
        turns=(Turn(start=start, end=len(trained)),),
    )


def test_the_end_of_a_turn_is_the_template_s(stage):
    _, tokenizer, trained, _ = stage

    assert end_of_turn(tokenizer) == trained[-1]


@pytest.mark.parametrize("form", ["ids", "chat", "text"])
def test_the_scored_tokens_end_where_a_score_was_learned(stage, form):
    folder, tokenizer, trained, _ = stage
    reader = TextReader(RewardModelConfig(path=str(folder), device="cpu", input=form))

    read = reader.read(sample_of(stage))

    if form == "text":
        # A response comes without its special tokens, such as those around an empty thought.
        assert read[-1] == trained[-1]
        assert tokenizer.decode(read[:-1], skip_special_tokens=True).endswith(ANSWER)
        return
    assert list(read) == trained
    expected = plain_score(folder, trained)
    assert reader.scores([read]) == pytest.approx([expected], abs=1e-5)


def test_a_server_scores_at_the_same_token(stage):
    folder, tokenizer, trained, _ = stage
    options = ServeConfig(path=str(folder), device="cpu")
    tokenize = tokenize_function(options, Scorer(options))
    whole = tokenizer.decode(trained)
    queries = [whole, whole.removesuffix(tokenizer.decode(trained[-1:])), whole + "\n"]

    found = tokenize(ScoreRequest(queries=queries, token_ids=None, prompts=None))

    assert [list(ids) for ids in found] == [trained] * 3


@pytest.mark.parametrize("written", ["another end", "padding behind it", "none"])
def test_sampled_tokens_get_the_end_that_was_learned(stage, written):
    """A policy stops at any of its ends, and an answer that was cut has none."""
    folder, tokenizer, trained, _ = stage
    sample = sample_of(stage)
    tails = {
        "another end": (*trained[:-1], tokenizer.eos_token_id),
        "padding behind it": (*trained, tokenizer.pad_token_id),
        "none": tuple(trained[:-1]),
    }
    reader = TextReader(RewardModelConfig(path=str(folder), device="cpu"))

    assert list(reader.read(replace(sample, token_ids=tails[written]))) == trained


def test_a_model_of_others_is_scored_as_it_was_asked(tmp_path):
    """Without a word of its training a model is read by Transformers' rule, line break or not."""
    tokenizer = released_tokenizer("qwen2_5")
    folder = write_reward_model(
        tmp_path / "rm", vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id
    )
    tokenizer.save_pretrained(folder)
    sample = request_of("x", ANSWER, row={"prompt": QUESTION})

    def last(**options):
        reader = TextReader(
            RewardModelConfig(path=str(folder), device="cpu", input="chat", **options)
        )
        return tokenizer.convert_ids_to_tokens([list(reader.read(sample))[-1]])[0]

    assert last() == "\u010a"
    assert last(score_at="end") == "<|im_end|>"


def test_a_list_of_scored_tokens_that_is_none_is_refused(tmp_path):
    folder = write_reward_model(tmp_path / "rm", score_token_ids="<|im_end|>")

    with pytest.raises(
        ConfigError,
        match=r"score_token_ids '<\|im_end\|>'",
        check=has_code("reward-model/end-tokens"),
    ):
        load_model(RewardModelConfig(path=str(folder), device="cpu"))
