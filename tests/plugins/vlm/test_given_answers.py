"""Given answers to prompts with images: what ``rlhf sft``, ``rlhf dpo`` and ``rlhf rm`` train on, and their losses.

Families beyond the first ones have the marker ``matrix``.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.images import saved
from tests.plugins.vlm.vlm_material import SIZES, plan_for, turned

from rlhf_core.contracts import (
    ComponentRef,
    PolicyObjective,
    PreferenceObjective,
    RankingObjective,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.media import ImageReader
from rlhf_data import (
    ConversationColumns,
    PairColumns,
    SequenceOptions,
    load_conversations,
    load_pairs,
)

SFT = PolicyObjective(
    loss=ComponentRef(kind="rlhf_policy_losses", name="supervised:sft"), aggregation="token-mean"
)
DPO = PreferenceObjective(
    loss=ComponentRef(kind="rlhf_preference_losses", name="algorithms:dpo", options={"beta": 0.3})
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for number, size in enumerate(SIZES):
        (folder / f"{number}.png").write_bytes(saved(turned(number, size)))
    return folder


@pytest.fixture(scope="module")
def load(folder, stage):
    def load(read, columns, rows, **options) -> TrajectoryColumns:
        file = folder / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        reader = ImageReader(stage.images.loader, stage.images.tokens, "images")
        return read(
            [str(file)],
            columns,
            SequenceOptions(**options),
            stage.renderer,
            eos=stage.renderer.tokenizer.eos_token_id,
            images=reader,
        ).columns

    return load


def image(number: int) -> dict:
    return {"type": "image", "image": f"{number}.png"}


def said(role: str, *parts) -> dict:
    return {
        "role": role,
        "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts],
    }


@pytest.fixture(scope="module")
def conversations(load) -> TrajectoryColumns:
    rows = [
        {
            "messages": [
                said("user", image(0), "what?"),
                said("assistant", "red"),
                said("user", "and ", image(1), image(2), "?"),
                said("assistant", "two"),
            ]
        },
        {
            "messages": [
                {"role": "user", "content": "how many in <image>, <image>?"},
                {"role": "assistant", "content": "many"},
            ],
            "images": ["3.png", "4.png"],
        },
        {"messages": [said("user", "1+1"), said("assistant", "2")]},
    ]
    return load(load_conversations, ConversationColumns(messages_key="messages"), rows)


@pytest.fixture(scope="module")
def pairs(load) -> TrajectoryColumns:
    rows = [
        {"prompt": "<image> what?", "images": ["0.png"], "chosen": "red", "rejected": "blue"},
        {
            "prompt": [said("user", image(1), image(3), "same?")],
            "chosen": [said("assistant", "yes")],
            "rejected": [said("assistant", "no")],
        },
    ]
    return load(load_pairs, PairColumns(chat=True), rows)


def answers_of(stage, rows: TrajectoryColumns) -> list[str]:
    tokens = rows.tokens.read()
    parts = np.split(tokens.token_ids[tokens.action_mask], tokens.action_offsets[1:-1])
    return [stage.renderer.decode(part.tolist(), skip_special_tokens=False) for part in parts]


def test_answers_alone_are_learned_and_images_have_all_their_tokens(stage, conversations):
    assert answers_of(stage, conversations) == [
        "red<|im_end|>two<|im_end|>",
        "many<|im_end|>",
        "2<|im_end|>",
    ]
    assert conversations.num_media.tolist() == [3, 2, 0]
    family = stage.vision.family(str(stage.path), trust_remote_code=False)
    for row in range(len(conversations)):
        ids = conversations.tokens_of(row)
        for span in conversations.media_of(row):
            assert tuple(ids[span.start : span.end].tolist()) == family.tokens.tokens_of(span.image)


def test_the_loss_of_sft_is_that_of_transformers(stage, conversations):
    backend = stage.backend(objective=SFT)
    ones = np.ones(int(conversations.num_actions.sum()), dtype=np.float32)

    outcome = backend.train_step(
        TrainBatch(trajectories=conversations, columns={"advantages": ones}),
        plan_for(conversations),
    )

    expected = -stage.own_logprobs(conversations).mean()
    assert outcome.metrics["loss/policy"].value() == pytest.approx(expected, abs=1e-5)


def test_what_a_teacher_finds_most_probable_is_what_transformers_does(
    stage, backend, conversations
):
    """``rlhf distill`` and losses that learn from a teacher ask for these."""
    found = backend.top_tokens(conversations, 5)

    expected = torch.cat(stage.own_distributions(conversations))
    logprobs, tokens = expected.topk(5)
    np.testing.assert_allclose(found.logprobs, logprobs.numpy(), atol=1e-5)
    assert found.token_ids.tolist() == tokens.tolist()


def test_the_loss_of_dpo_is_that_of_transformers(stage, pairs):
    assert answers_of(stage, pairs) == [
        "red<|im_end|>",
        "blue<|im_end|>",
        "yes<|im_end|>",
        "no<|im_end|>",
    ]
    assert pairs.num_media.tolist() == [1, 1, 2, 2]
    backend = stage.backend(objective=DPO)
    size = int(pairs.num_actions.sum())
    reference = np.random.default_rng(0).normal(-3, 1, size=size).astype(np.float32)

    outcome = backend.train_step(
        TrainBatch(trajectories=pairs, columns={"ref_logprobs": reference}), plan_for(pairs)
    )

    ratios = stage.own_logprobs(pairs) - reference
    sums = [float(part.sum()) for part in np.split(ratios, pairs.action_offsets[1:-1])]
    differences = torch.tensor([sums[0] - sums[1], sums[2] - sums[3]])
    expected = -torch.nn.functional.logsigmoid(0.3 * differences).mean()
    assert outcome.metrics["loss/preference"].value() == pytest.approx(float(expected), abs=1e-4)


def test_the_loss_of_a_reward_model_is_that_of_transformers_and_its_folder_has_the_head(
    stage, pairs, tmp_path
):
    spec = {"role": "reward_model", "head": "score", "objective": RankingObjective()}
    backend = stage.backend(**spec)
    backend.export(tmp_path / "out")

    outcome = backend.train_step(TrainBatch(trajectories=pairs, columns={}), plan_for(pairs))

    weights = load_file(tmp_path / "out/model.safetensors")
    masks = np.split(pairs.action_mask, pairs.token_offsets[1:-1])
    last = [
        hidden[int(np.flatnonzero(mask)[-1])]  # behind the answer stands a line break
        for hidden, mask in zip(stage.own_hidden(pairs, tmp_path / "out"), masks, strict=True)
    ]
    scores = torch.stack(last) @ weights["score.weight"][0]
    expected = -torch.nn.functional.logsigmoid(scores[0::2] - scores[1::2]).mean()
    assert outcome.metrics["loss/ranking"].value() == pytest.approx(float(expected), abs=1e-5)
    again = stage.backend(**spec, model_path=str(tmp_path / "out"))
    ends = pairs.action_offsets[1:] - 1
    np.testing.assert_allclose(again.values(pairs)[ends], scores.numpy(), atol=1e-5)


def test_a_row_that_is_cut_keeps_whole_images(load, stage):
    rows = [
        {
            "messages": [
                said("user", "hi"),
                said("assistant", "yes"),
                said("user", image(3)),
                said("assistant", "no"),
            ]
        }
    ]
    columns = ConversationColumns(messages_key="messages")
    whole = load(load_conversations, columns, rows)
    (span,) = whole.media_of(0)

    cut = load(load_conversations, columns, rows, max_length=span.start + 1, on_too_long="truncate")

    assert cut.num_media.tolist() == [0]
    assert cut.token_ids.tolist() == whole.token_ids[: span.start].tolist()
    assert answers_of(stage, cut) == ["yes<|im_end|>"]
    stage.backend(objective=SFT).logprobs(replace(cut, media=cut.media))
