"""The reward ``reward_model`` with images: the score of what the policy saw, by a model that reads images itself.

Families beyond the first ones have the marker ``matrix``.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.images import saved
from tests.plugins.vlm.vlm_material import turned

from rlhf_core import ConfigError, RewardError
from rlhf_core.contracts import ComponentRef, RankingObjective, RewardRequest, Turn
from rlhf_core.media import Expanded, MediaStore, SampleImage, decode, references_in
from rlhf_core.plugins import load
from rlhf_guard.processes import marked_json
from rlhf_guard.rewards import wire
from rlhf_plugin_reward_model.config import ServeConfig
from rlhf_plugin_reward_model.scoring import Scorer
from rlhf_testing.errors import has_code

OBJECTIVE = {"role": "reward_model", "head": "score", "objective": RankingObjective()}


@pytest.fixture(scope="module")
def reward_folder(stage, tmp_path_factory):
    """A reward model as ``rlhf rm --model.vision vlm`` exports it, with a head that is large enough to tell scores."""
    if stage.spec.vision.component.options:
        pytest.skip("a reward is not told how its model sees several images")
    folder = tmp_path_factory.mktemp("rm") / "model"
    backend = stage.backend(**OBJECTIVE)
    torch.nn.init.normal_(
        backend._model.value_head.weight, generator=torch.Generator().manual_seed(3)
    )
    backend.export(folder)
    stage.renderer.tokenizer.save_pretrained(folder)
    return folder


def reward(folder, **options):
    registered = load("").get("rlhf_rewards", "reward_model")
    return registered.build(registered.validate({"path": str(folder), **options}))


def scored(component, requests):
    """Scores, after the requests went to another process: as references to files."""
    sent = wire.requests_of(marked_json.decode(wire.requests_line(1, requests)))
    results = asyncio.run(component.score(sent))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result.reward for result in results]


def request_of(stage, tokens: Expanded, prompt: int | None = None, uid="0.0.0.0") -> RewardRequest:
    """A finished sample, as a run gives it to rewards.

    Args:
        prompt: number of tokens before the first answer; None: all.
    """
    ids, first = tokens.token_ids, len(tokens.token_ids) if prompt is None else prompt
    return RewardRequest(
        uid=uid,
        row={},
        prompt=stage.renderer.decode(ids[:first], skip_special_tokens=False),
        response=stage.renderer.decode(ids[first:], skip_special_tokens=True),
        token_ids=ids,
        action_mask=(False,) * first + (True,) * (len(ids) - first),
        turns=(Turn(start=first, end=len(ids)),),
        truncated=False,
        media=tuple(SampleImage(folder=str(stage.media), span=span) for span in tokens.spans),
    )


def requests_for(stage, batch) -> list[RewardRequest]:
    """The samples of a batch."""
    return [
        request_of(
            stage,
            Expanded(tuple(batch.tokens_of(row).tolist()), batch.media_of(row)),
            prompt=first_action(batch, row),
            uid=f"0.{row}.0.0",
        )
        for row in range(len(batch))
    ]


def first_action(batch, row: int) -> int:
    columns = batch.tokens.read()
    mask = columns.action_mask[columns.token_offsets[row] : columns.token_offsets[row + 1]]
    return int(np.argmax(mask))


def plain_scores(stage, batch, folder):
    """What Transformers' model below the head gives, each sequence alone and unpacked."""
    head = load_file(folder / "model.safetensors")["score.weight"][0]
    return [float(hidden[-1] @ head) for hidden in stage.own_hidden(batch, folder)]


def test_its_folder_is_no_model_that_writes(stage, reward_folder):
    with pytest.raises(ConfigError, check=has_code("model/is-a-reward-model")):
        stage.backend(model_path=str(reward_folder))


def test_a_score_is_that_of_transformers(stage, batch, reward_folder):
    assert any(len(batch.media_of(row)) > 1 for row in range(len(batch)))

    found = scored(reward(reward_folder, vision="vlm"), requests_for(stage, batch))

    expected = plain_scores(stage, batch, reward_folder)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len({round(score, 3) for score in expected}) == len(expected)


@pytest.mark.parametrize("batch_tokens", [1, 300])
def test_the_batch_does_not_change_a_score(stage, batch, reward_folder, batch_tokens):
    requests = requests_for(stage, batch)

    together = scored(reward(reward_folder, vision="vlm"), requests)
    cut = scored(reward(reward_folder, vision="vlm", batch_tokens=batch_tokens), requests)

    np.testing.assert_allclose(cut, together, atol=1e-5)


def test_a_score_depends_on_the_pixels_of_its_own_images_alone(stage, batch, reward_folder):
    """All images of one sample have their pixels in another order."""
    component = reward(reward_folder, vision="vlm")
    requests = requests_for(stage, batch)
    row = max(range(len(requests)), key=lambda at: len(requests[at].media))
    changed = list(requests)
    changed[row] = replace(
        requests[row], media=tuple(permuted(stage, image) for image in requests[row].media)
    )

    before, after = scored(component, requests), scored(component, changed)

    differences = np.abs(np.subtract(after, before))
    assert differences[row] > 1e-4
    assert np.delete(differences, row).max() < 1e-5


def permuted(stage, image: SampleImage) -> SampleImage:
    """An image with the same pixels in another order."""
    pixels = np.asarray(decode(MediaStore(stage.media).read(image.span.image)))
    flat = pixels.reshape(-1, 3)
    other = np.random.default_rng(0).permutation(flat).reshape(pixels.shape)
    reference = stage.images.loader.take(saved(Image.fromarray(other)), stage.media)
    return replace(image, span=replace(image.span, image=reference))


def test_a_chat_is_rendered_with_its_images_wherever_the_row_has_them(stage, reward_folder):
    """In parts of its messages, or beside a text with marks: as the sequence of its own template's tokens."""
    messages = stage.images.messages(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}],
        [saved(turned(1, (24, 16)))],
    )
    shown = references_in(messages)
    answer = {"role": "assistant", "content": "red"}
    tokenizer = stage.renderer.tokenizer
    text = tokenizer.apply_chat_template([*messages, answer], tokenize=False)
    text = stage.images.tokens.writing.written(text)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    # The model was trained to score at the token that ends a turn, and not at what the template writes behind it.
    ids = ids[: len(ids) - ids[::-1].index(tokenizer.eos_token_id)]
    whole = stage.images.expand(ids, shown)
    as_ids = request_of(stage, whole, prompt=len(whole.token_ids) - 3)
    # What the policy read has other tokens: those of its own template.
    asked = stage.images.expand(stage.renderer.render(messages), shown)
    as_parts = replace(
        request_of(stage, asked), row={"prompt": list(map(dict, messages))}, response="red"
    )
    beside = replace(as_parts, row={"prompt": "<image>what?"})

    found = scored(reward(reward_folder, vision="vlm", input="chat"), [as_parts, beside])

    expected = scored(reward(reward_folder, vision="vlm"), [as_ids])
    assert found == pytest.approx(2 * expected, abs=1e-5)


def test_images_behind_an_answer_have_no_place_in_a_chat(stage, batch, reward_folder):
    requests = requests_for(stage, batch)
    late = next(one for one in requests if one.media[-1:] and _is_late(one))

    with pytest.raises(RewardError, check=has_code("reward-model/images")):
        scored(
            reward(reward_folder, vision="vlm", input="chat"), [replace(late, row={"prompt": ""})]
        )


def _is_late(request: RewardRequest) -> bool:
    return request.media[-1].span.start > request.turns[0].start


def test_images_of_another_size_than_their_tokens_concern_their_sample_alone(
    stage, batch, reward_folder
):
    requests = requests_for(stage, batch)
    row = next(at for at, one in enumerate(requests) if one.media)
    short = replace(requests[row], media=requests[row].media[1:])
    component = reward(reward_folder, vision="vlm")

    results = asyncio.run(component.score([*requests[:row], short, *requests[row + 1 :]]))

    assert isinstance(results[row], RewardError)
    assert "tokens stand for features of images" in str(results[row])
    assert not any(isinstance(one, Exception) for at, one in enumerate(results) if at != row)


def test_a_model_without_a_head_and_one_that_is_not_asked_to_see_are_refused(
    stage, family, reward_folder
):
    with pytest.raises(ConfigError, match="it has none", check=has_code("reward-model/no-head")):
        reward(stage.path, vision="vlm")
    if family not in ("gemma3", "qwen3_5"):  # whose classifiers in Transformers read text too
        with pytest.raises(
            ConfigError,
            match=r"it reads images .* with its option vision",
            check=has_code("reward-model/reads-images"),
        ):
            reward(reward_folder)
        with pytest.raises(
            ConfigError,
            match="rlhf serve-rm serves models that read text alone",
            check=has_code("reward-model/reads-images"),
        ):
            Scorer(ServeConfig(path=str(reward_folder)))


def test_one_beside_a_base_in_four_bits_is_refused_before_it_is_trained(stage):
    qlora = ComponentRef(kind="rlhf_model_adapters", name="lora:qlora", options={"rank": 4})

    with pytest.raises(
        ConfigError,
        match=r"reads images and is exported as one model.*Choose",
        check=has_code("adapter/with-images"),
    ):
        stage.backend(**OBJECTIVE, adapter=qlora)
