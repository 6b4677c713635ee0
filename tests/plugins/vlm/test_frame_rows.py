"""Rows with frames of videos: what ``rlhf sft``, ``rlhf dpo`` and ``rlhf train`` read of them, and whole runs.

One family of each way to tell the time: by positions, and by texts.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.images import saved
from tests.plugins.vlm.test_given_answers import DPO, SFT, answers_of, said
from tests.plugins.vlm.vlm_material import Stage, plan_for, policy_spec, train_batch
from tests.plugins.vlm.written_videos import clip, own_logits
from transformers import AutoModelForImageTextToText

from rlhf_cli.main import main
from rlhf_core import DataError, PluginError
from rlhf_core.contracts import TrainBatch, TrajectoryColumns
from rlhf_core.media import ImageReader, MediaLoader, MediaOptions, references_in, seen_together
from rlhf_data import (
    ConversationColumns,
    PairColumns,
    SequenceOptions,
    load_conversations,
    load_pairs,
)
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import write_tiny_vision_model

REWARD = """
def score(media):
    return float(sum(one.span.image.frame.time_s for one in media))

def varies(response):
    return sum(map(ord, response)) % 7
"""


def written(folder: Path, family: str) -> Path:
    return write_tiny_vision_model(folder / family, family, initializer_range=0.1)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def stage(request, tmp_path_factory, all_plugins) -> Stage:
    path = written(tmp_path_factory.mktemp("models"), request.param)
    media = tmp_path_factory.mktemp("run") / "media"
    return Stage(path, media, all_plugins, policy_spec(path, media))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for number in range(2):
        for index, one in enumerate(clip(number, 4)):
            (folder / f"{number}-{index}.png").write_bytes(saved(one))
    return folder


def video(number: int, count: int = 4, **times: object) -> dict:
    names = [f"{number}-{index}.png" for index in range(count)]
    return {"type": "video", "video": names, **(times or {"fps": 1.0 + number})}


@pytest.fixture(scope="module")
def load(folder, stage):
    def load(read, columns, rows, **options) -> TrajectoryColumns:
        file = folder / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        return read(
            [str(file)],
            columns,
            SequenceOptions(**options),
            stage.renderer,
            eos=stage.renderer.tokenizer.eos_token_id,
            images=ImageReader(stage.images.loader, stage.images.tokens, "images"),
        ).columns

    return load


CHAT = [said("user", "see ", video(0, 3), "?"), said("assistant", "red")]
MORE = [said("user", "and ", video(1), "?"), said("assistant", "two")]


@pytest.fixture(scope="module")
def conversations(load) -> TrajectoryColumns:
    return load(
        load_conversations,
        ConversationColumns(messages_key="messages"),
        [{"messages": [*CHAT, *MORE]}, {"messages": MORE}],
    )


def own_logprobs(stage: Stage, rows: TrajectoryColumns) -> np.ndarray:
    model = AutoModelForImageTextToText.from_pretrained(stage.path).eval()
    with torch.no_grad():
        return np.concatenate(
            [own_logits(stage, model, rows, row).numpy() for row in range(len(rows))]
        )


def test_the_loss_of_sft_is_that_of_transformers(stage, conversations):
    assert answers_of(stage, conversations) == ["red<|im_end|>two<|im_end|>", "two<|im_end|>"]
    assert conversations.num_media.tolist() == [7, 4]
    ones = np.ones(int(conversations.num_actions.sum()), dtype=np.float32)

    outcome = stage.backend(objective=SFT).train_step(
        TrainBatch(trajectories=conversations, columns={"advantages": ones}),
        plan_for(conversations),
    )

    expected = -own_logprobs(stage, conversations).mean()
    assert outcome.metrics["loss/policy"].value() == pytest.approx(expected, abs=1e-5)


def test_the_loss_of_dpo_is_that_of_transformers(stage, load):
    pair = {"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": MORE[1:]}
    pairs = load(load_pairs, PairColumns(chat=True), [pair])
    reference = np.full(int(pairs.num_actions.sum()), -3, dtype=np.float32)

    outcome = stage.backend(objective=DPO).train_step(
        TrainBatch(trajectories=pairs, columns={"ref_logprobs": reference}), plan_for(pairs)
    )

    ratios = own_logprobs(stage, pairs) - reference
    chosen, rejected = (float(part.sum()) for part in np.split(ratios, pairs.action_offsets[1:-1]))
    expected = -torch.nn.functional.logsigmoid(torch.tensor(0.3 * (chosen - rejected)))
    assert outcome.metrics["loss/preference"].value() == pytest.approx(float(expected), abs=1e-4)


def test_a_row_that_is_cut_keeps_whole_groups_of_frames(load, stage, conversations):
    columns = ConversationColumns(messages_key="messages")
    third = list(seen_together(conversations.media_of(0)))[3][0]
    rows = [{"messages": [*CHAT, *MORE, said("user", "?")]}]

    cut = load(load_conversations, columns, rows, max_length=third.end - 1, on_too_long="truncate")

    # The second video is left with its first two frames, of which the size is that of all four.
    assert cut.num_media.tolist() == [5]
    assert len(cut.token_ids) == third.start
    assert answers_of(stage, cut) == ["red<|im_end|>"]
    stage.backend(objective=SFT).logprobs(cut)


def test_training_state_goes_on_to_the_bit(stage, conversations, tmp_path):
    def weights(backend) -> dict[str, bytes]:
        return {
            name: one.detach().numpy().tobytes() for name, one in backend._model.named_weights()
        }

    backend = stage.backend()
    backend.train_step(train_batch(conversations), plan_for(conversations))
    backend.save(tmp_path / "state")
    backend.train_step(train_batch(conversations), plan_for(conversations))
    again = stage.backend()
    again.load(tmp_path / "state")

    again.train_step(train_batch(conversations), plan_for(conversations))

    assert weights(again) == weights(backend)


def test_frames_with_tokens_of_another_time_are_refused(stage, conversations):
    """In Qwen3-VL the time is among the tokens; in Qwen2.5-VL it is not."""
    media = conversations.media.copy()
    media["time_s"] *= 2
    changed = TrajectoryColumns(
        **{name: getattr(conversations, name) for name in conversations.__slots__}
        | {"media": media}
    )
    if stage.path.name == "qwen3_vl":
        with pytest.raises(
            PluginError, match="expected the same tokens", check=has_code("image/tokens-differ")
        ):
            stage.backend(objective=SFT).logprobs(changed)


def test_uneven_times_are_refused_where_positions_have_one_rate(stage, load):
    uneven = [said("user", video(0, 3, timestamps=[0, 1, 5])), CHAT[1]]
    columns = ConversationColumns(messages_key="messages")
    if stage.path.name == "qwen3_vl":
        assert load(load_conversations, columns, [{"messages": uneven}]).num_media.tolist() == [3]
        return
    reason = r"rows\.jsonl:1: frame 2 of a video stands at 1 seconds, and at 0\.4 frames a second"
    with pytest.raises(DataError, match=reason, check=has_code("data/uneven-times-of-frames")):
        load(load_conversations, columns, [{"messages": uneven}])


@pytest.mark.parametrize("family", ["llava", "gemma3", "internvl"])
def test_another_family_names_the_row_and_the_way_out(tmp_path, folder, all_plugins, family):
    path = written(tmp_path, family)
    stage = Stage(path, tmp_path / "media", all_plugins, policy_spec(path, tmp_path / "media"))
    file = folder / "others.jsonl"
    file.write_text(json.dumps({"messages": CHAT}))

    with pytest.raises(
        DataError, match=r"others\.jsonl:1", check=has_code("data/video-for-a-model-of-images")
    ):
        load_conversations(
            [str(file)],
            ConversationColumns(messages_key="messages"),
            SequenceOptions(),
            stage.renderer,
            eos=1,
            images=ImageReader(MediaLoader(MediaOptions()), stage.family.tokens),
        )


SMALL = [
    *("--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "200"),
    *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
]


def run(path: Path, rows: Path, out: Path, *options: str) -> int:
    return main(
        [
            *("train", "--model", str(path), "--model.vision", "vlm", "--output", str(out)),
            *("--data", str(rows), "--data.chat", *SMALL, *options),
        ]
    )


@pytest.fixture
def rows(folder) -> Path:
    file = folder / "prompts.jsonl"
    prompts = [{"prompt": [said("user", "see ", video(number), "?")]} for number in (0, 1)]
    file.write_text("\n".join(map(json.dumps, prompts)))
    (folder / "reward.py").write_text(REWARD)
    return file


def test_a_run_shows_frames_with_their_times(tmp_path, stage, rows, capsys):
    reward = ("--reward", f"{rows.parent / 'reward.py'}:score", "--steps", "1")

    assert run(stage.path, rows, tmp_path / "run", *reward) == 0

    lines = (tmp_path / "run/samples.jsonl").read_text().splitlines()
    images = [json.loads(line)["images"] for line in lines]
    assert {len(each) for each in images} == {4}
    assert [one["frame"] for one in images[0]] == [0, 1, 2, 3]
    assert {tuple(one["time_s"] for one in each) for each in images} == {
        (0.0, 1.0, 2.0, 3.0),
        (0.0, 0.5, 1.0, 1.5),
    }
    rewards = {json.loads(line)["reward"] for line in lines}
    assert rewards == {6.0, 3.0}
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "frame 2 at" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit(tmp_path, stage, rows):
    reward = ("--reward", f"{rows.parent / 'reward.py'}:varies", "--checkpoint.every", "1")

    assert run(stage.path, rows, tmp_path / "whole", *reward, "--steps", "2") == 0
    assert run(stage.path, rows, tmp_path / "cut", *reward, "--steps", "1") == 0
    assert run(stage.path, rows, tmp_path / "cut", *reward, "--steps", "2", "--resume", "auto") == 0

    weights = [
        (tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "cut")
    ]
    assert weights[0] == weights[1] != (stage.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("word", ["engine", "executor"])
def test_a_run_whose_engine_or_executor_reads_no_frames_is_refused_by_row(
    tmp_path, stage, rows, word, capsys
):
    agent = f"{Path(__file__).parents[1]}/endpoint/sees.py:agent"
    options = {
        "engine": ("--engine", "vllm", "--reward", f"{rows.parent / 'reward.py'}:score"),
        "executor": (
            *("--executor", "endpoint", "--rollout.endpoint.agent", agent),
            *("--rollout.max_length", "300"),
        ),
    }[word]
    if word == "engine":
        pytest.importorskip("vllm")

    assert run(stage.path, rows, tmp_path / "run", *options) != 0

    said_so = capsys.readouterr().err
    assert "prompts.jsonl:1: there are frames of a video; this " + word in said_so


def test_generated_rows_have_their_videos_as_they_are_given(tmp_path, stage, rows, capsys):
    """They are read again: the same frames at the same times."""
    out = tmp_path / "answers"
    words = [
        *("generate", "--model", str(stage.path), "--model.vision", "vlm", "--output", str(out)),
        *("--data", str(rows), "--data.chat", "--rollout.max_new_tokens", "3"),
    ]

    assert main(words) == 0, capsys.readouterr().err

    lines = [json.loads(line) for line in (out / "completions.jsonl").read_text().splitlines()]
    messages = sorted((line["messages"] for line in lines), key=str)
    again = [stage.images.messages(one[:1], folder=out) for one in messages]
    given = [
        stage.images.messages(row["prompt"], folder=rows.parent)
        for row in map(json.loads, rows.read_text().splitlines())
    ]
    assert sorted(map(str, map(references_in, again))) == sorted(
        map(str, map(references_in, given))
    )
