"""The reward ``process_reward_model``, and the number that a server gives of a response's steps."""

import asyncio
import math
from dataclasses import replace

import pytest
from tests.deadlines import HANG_S
from tests.plugins.reward_model.conftest import CLOSE

from rlhf_core import ConfigError, RewardError
from rlhf_core.contracts import Turn
from rlhf_plugin_reward_model.config import ServeConfig, StepRewardConfig
from rlhf_plugin_reward_model.serving.command import step_model
from rlhf_plugin_reward_model.serving.protocol import BadRequest, ScoreRequest
from rlhf_plugin_reward_model.steps import reduced, stepped_text
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

PROMPT, STEPS = "1 + 1 + 1 = \n\n", ["1 + 1 is 2", "2 + 1 is 4", "So 4"]


@pytest.fixture(scope="module")
def process_model(make_reward_model, tmp_path_factory):
    return make_reward_model(tmp_path_factory.mktemp("prm") / "model", step_separator="\n")


def probabilities(plain, folder, prompt, steps, separator="\n"):
    """What Transformers gives for each beginning of the text that ends behind a step, one at a time."""
    tokenizer, text, found = tiny_tokenizer(), prompt, []
    for step in steps:
        text += step + separator
        score = plain(folder, tokenizer.encode(text, add_special_tokens=False))
        found.append(1 / (1 + math.exp(-score)))
    return found


def test_reductions_by_hand():
    steps = [0.5, 0.25, 1.0]

    assert reduced(steps, "min") == 0.25
    assert reduced(steps, "mean") == pytest.approx(1.75 / 3)
    assert reduced(steps, "last") == 1.0
    assert reduced(steps, "product") == 0.125
    assert all(reduced([0.3], how) == 0.3 for how in ("min", "mean", "last", "product"))


@pytest.mark.parametrize("reduce", ["min", "mean", "last", "product"])
def test_the_reward_is_that_of_the_beginnings_of_the_text(
    results, plain, process_model, sample, reduce
):
    asked = [sample(PROMPT, "\n".join(STEPS[:count])) for count in (3, 1, 2)]

    found = results("process_reward_model", asked, path=str(process_model), reduce=reduce)

    for result, count in zip(found, (3, 1, 2), strict=True):
        steps = probabilities(plain, process_model, PROMPT, STEPS[:count])
        assert result.reward == pytest.approx(reduced(steps, reduce), **CLOSE)
        assert result.metrics == {
            "steps": count,
            "min": pytest.approx(min(steps), **CLOSE),
            "mean": pytest.approx(sum(steps) / count, **CLOSE),
        }


def test_other_samples_change_a_score_by_rounding_only(results, process_model, sample):
    asked = [sample(PROMPT, "\n".join(STEPS)), sample(PROMPT, "x" * 90)]

    together = results("process_reward_model", asked, path=str(process_model))
    alone = [
        results("process_reward_model", [one], path=str(process_model), batch_tokens=1)[0]
        for one in asked
    ]

    assert [one.reward for one in together] == pytest.approx([one.reward for one in alone], **CLOSE)


def test_a_policy_may_part_its_steps_otherwise_than_the_model_learned(
    results, plain, process_model, sample
):
    options = {"path": str(process_model), "split": "\n\n", "separator": "#", "reduce": "product"}

    (found,) = results("process_reward_model", [sample(PROMPT, "a\nb\n\nc\n\n")], **options)

    steps = probabilities(plain, process_model, PROMPT, ["a\nb", "c"], separator="#")
    assert found.reward == pytest.approx(math.prod(steps), **CLOSE)


def test_each_probability_may_stand_on_the_last_token_of_its_step(
    results, plain, process_model, sample
):
    texts = ["\n".join(STEPS), "\n\n" + STEPS[0] + " \n"]

    found = results(
        "process_reward_model",
        [sample(PROMPT, text) for text in texts],
        path=str(process_model),
        reduce="none",
    )

    tokenizer = tiny_tokenizer()
    expected = probabilities(plain, process_model, PROMPT, STEPS)
    ends = [len(tokenizer.encode("\n".join(STEPS[:count]))) - 1 for count in (1, 2, 3)]
    assert [action for action, _ in found[0].step_rewards] == ends
    assert [part for _, part in found[0].step_rewards] == pytest.approx(expected, **CLOSE)
    assert found[0].reward == pytest.approx(sum(expected), **CLOSE)
    assert found[0].metrics["steps"] == 3
    # Two blank lines, the step, and a blank behind it, which the model sees and which is not the step's end.
    (only,) = found[1].step_rewards
    assert only[0] == 2 + len(STEPS[0]) - 1


def test_steps_of_the_environment_earn_nothing(results, process_model, sample):
    request = sample(PROMPT, "a\nbc\nd", eos=False)
    start = len(request.token_ids) - 6
    mask = tuple(
        index >= start and index not in (start + 2, start + 3) for index in range(start + 6)
    )
    turns = (Turn(start=start, end=start + 2), Turn(start=start + 4, end=start + 6))
    request = replace(request, action_mask=mask, turns=turns)

    (found,) = results("process_reward_model", [request], path=str(process_model), reduce="none")
    (worst,) = results("process_reward_model", [request], path=str(process_model), reduce="min")

    # Actions: "a", line break | line break, "d"; "bc" is the environment's.
    assert [action for action, _ in found.step_rewards] == [0, 3]
    assert found.metrics == worst.metrics
    assert found.metrics["steps"] == 3


def test_a_fixed_reward_of_a_truncated_response_has_no_parts(results, process_model, sample):
    cut = replace(sample(PROMPT, "4\n5"), truncated=True)
    options = {"path": str(process_model), "reduce": "none", "truncated_reward": -1.0}

    (found,) = results("process_reward_model", [cut], **options)

    assert (found.reward, found.step_rewards) == (-1.0, ())


def test_a_policy_with_another_tokenizer_is_told_apart(results, process_model, sample):
    request = sample(PROMPT, "4")
    other = replace(request, token_ids=(*request.token_ids[:-2], 9, 2))

    (found,) = results("process_reward_model", [other], path=str(process_model), reduce="none")
    named = {"path": str(process_model), "reduce": "none", "policy_tokenizer": str(process_model)}
    (same,) = results("process_reward_model", [request], **named)

    assert isinstance(found, RewardError)
    assert "Set policy_tokenizer" in str(found)
    assert same.step_rewards[0][0] == 0


def test_a_policys_tokenizer_without_places_would_change_nothing():
    with pytest.raises(ValueError, match="policy_tokenizer would change nothing: reduce is min"):
        StepRewardConfig(path="model", policy_tokenizer="policy")


def test_blank_steps_do_not_count(results, process_model, sample):
    options = {"path": str(process_model)}
    bare, blank = results(
        "process_reward_model", [sample(PROMPT, "a\nb"), sample(PROMPT, "a\n\n \nb\n\n")], **options
    )

    assert bare == blank


def test_a_response_without_a_step_has_no_score(results, process_model, sample):
    empty, good = results(
        "process_reward_model",
        [sample(PROMPT, " \n"), sample(PROMPT, "4")],
        path=str(process_model),
    )

    assert isinstance(empty, RewardError)
    assert "has no step to score" in str(empty)
    assert 0 < good.reward < 1


def test_a_sequence_beyond_the_longest_has_no_score(results, process_model, sample):
    (found,) = results(
        "process_reward_model",
        [sample(PROMPT, "4")],
        path=str(process_model),
        max_length=10,
    )

    assert isinstance(found, RewardError)
    assert "max_length is 10" in str(found)


def test_a_truncated_response_may_have_a_fixed_reward(results, process_model, sample):
    cut = replace(sample(PROMPT, "4"), truncated=True)

    (found,) = results(
        "process_reward_model", [cut], path=str(process_model), truncated_reward=-1.0
    )

    assert found.reward == -1.0


def test_a_model_that_does_not_say_what_stands_behind_its_steps_is_refused(reward, reward_model):
    with pytest.raises(
        ConfigError, match="step_separator", check=has_code("reward-model/no-separator")
    ):
        reward("process_reward_model", path=str(reward_model))


def test_a_separator_that_is_joined_with_the_next_step_is_refused():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"a": 0, ";b": 1, ";": 2, "?": 3}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(";", behavior="merged_with_next")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?")

    assert stepped_text("a", ["a"], ";", tokenizer).places == [1]
    with pytest.raises(RewardError, match=r"step 1.*';'", check=has_code("reward-model/separator")):
        stepped_text("a", ["a", "b"], ";", tokenizer)


@pytest.fixture(scope="module")
def served(process_model):
    """``served(queries, prompts)``: what a server with ``--steps min`` answers."""
    model = step_model(ServeConfig(path=str(process_model), steps="min"), "min")

    def ask(queries, prompts):
        return model.score(model.tokenize(ScoreRequest(queries, prompts, None)))

    return ask


def test_a_server_gives_the_same_number(served, results, process_model, sample):
    responses = ["\n".join(STEPS[:count]) for count in (1, 3)]
    beside = results(
        "process_reward_model",
        [sample(PROMPT, response) for response in responses],
        path=str(process_model),
    )

    found = served([PROMPT + response + "<eos>" for response in responses], [PROMPT, PROMPT])

    assert found == [result.reward for result in beside]


def test_a_server_needs_the_prompts_to_know_where_steps_begin(served):
    with pytest.raises(BadRequest, match="expected 'prompts'"):
        served(["1 + 1 is 2"], None)
    with pytest.raises(BadRequest, match="does not begin with its prompt"):
        served(["1 + 1 is 2"], ["2"])
    with pytest.raises(RewardError, match="no step to score", check=has_code("reward-model/empty")):
        served(["1 + 1\n<eos>"], ["1 + 1\n"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": "min", "normalize": "model"}, "normalize = model would change nothing"),
        ({"steps": "min", "input": "ids"}, "steps are found in text"),
        ({"separator": "#"}, "separator = # would change nothing"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ServeConfig(path="model", **options)


@pytest.mark.slow
def test_a_server_of_steps_answers_over_http(serve, served, process_model):
    httpx = pytest.importorskip("httpx")

    with serve(str(process_model), "--port", "0", "--steps", "min") as server:
        body = {"query": [PROMPT + "a\nb"], "prompts": [PROMPT], "labels": [None]}
        headers = {"Authorization": "Bearer the-tests-token"}

        async def ask():
            async with httpx.AsyncClient(timeout=HANG_S) as client:
                return await client.post(server.url, json=body, headers=headers)

        answer = asyncio.run(ask())

    assert answer.status_code == 200
    assert answer.json()["rewards"] == pytest.approx(served([PROMPT + "a\nb"], [PROMPT]), **CLOSE)
