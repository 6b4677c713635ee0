"""``rlhf generate``, ``rlhf eval`` and ``rlhf chat`` with a model that reads images, against its plain forward pass."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.images import SHOWS, noisy, saved
from tests.integration.forked_runs import run_in_a_fork
from tests.plugins.inference.chat.test_chat import through_a_pipe
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from rlhf_cli.main import main
from rlhf_config import Selection
from rlhf_core.plugins import load
from rlhf_plugin_inference.serving.model_source import ModelSource
from rlhf_plugin_inference.serving.options import ModelToServe
from rlhf_plugin_inference.serving.sight import open_sight
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

LIMIT = 5
SMALL = [
    *("--rollout.max_new_tokens", str(LIMIT), "--data.max_prompt_tokens", "100"),
    *("--log.progress", "off", "--model.dtype", "float32"),
]
ROWS = ["--data", "rows.jsonl", "--data.chat", "--data.image_key", "images"]
SEEING = ["--model.vision", "vlm"]
REWARD = """
from PIL import Image

def width(media, response):
    with Image.open(media[0].path) as image:
        return {"reward": float(image.width), "images": len(media)}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """Six rows with one text and an image each, and the last with two."""
    folder = tmp_path_factory.mktemp("seeing")
    write_tiny_vision_model(folder / "model", initializer_range=0.3)
    write_tiny_model(folder / "text")
    (folder / "pictures").mkdir()
    rows = []
    for number in range(6):
        picture = noisy(16 + 8 * (number % 3), 16).rotate(90 * number, expand=True)
        (folder / f"pictures/{number}.png").write_bytes(saved(picture))
        rows.append({"prompt": "<image>how many?", "images": [f"pictures/{number}.png"]})
    rows[-1] = {"prompt": "<image>or<image>", "images": ["pictures/0.png", "pictures/5.png"]}
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "reward.py").write_text(REWARD)
    (folder / "shows.py").write_text(SHOWS)
    return folder


@pytest.fixture
def folder(workspace, tmp_path, monkeypatch) -> Path:
    for path in workspace.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@torch.inference_mode()
def naive_answer(folder: Path, text: str, pictures: list[Path]) -> str:
    """The most probable tokens, each by a pass of the plain model, tokens that stand for images left out."""
    model = AutoModelForImageTextToText.from_pretrained(folder / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    processor = AutoImageProcessor.from_pretrained(folder / "model", backend="pil")
    made = processor(images=[Image.open(path) for path in pictures], return_tensors="pt")
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    sizes = iter((made["image_grid_thw"].prod(-1) // processor.merge_size**2).tolist())
    tokens: list[int] = []
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        tokens += [token] * (next(sizes) if token == pad else 1)
    start = len(tokens)
    never = [pad, tokenizer.convert_tokens_to_ids("<|video_pad|>")]
    while len(tokens) < start + LIMIT and tokens[-1] != tokenizer.eos_token_id:
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, mm_token_type_ids=(ids == pad).int(), **made).logits[0, -1]
        logits[never] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokenizer.decode(tokens[start:], skip_special_tokens=True)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def images_of(messages: list[dict]) -> list[Path]:
    return [Path(part["image"]) for part in messages[0]["content"] if part["type"] == "image"]


GREEDY = ["--rollout.temperature", "0"]


@pytest.mark.slow
def test_completions_are_those_of_the_plain_model_that_sees(folder):
    words = ["generate", "--model", "model", *SEEING, *SMALL, *ROWS, *GREEDY]
    assert main([*words, "--reward", "reward.py:width", "--output", "out"]) == 0

    found = lines(folder / "out/completions.jsonl")
    answers = [one["completions"][0]["text"] for one in found]
    for one, answer in zip(found, answers, strict=True):
        pictures = [folder / "out" / path for path in images_of(one["messages"])]
        assert answer == naive_answer(folder, one["prompt"], pictures)
    assert len(set(answers[:5])) > 1, "images of one text make a difference"
    assert [len(images_of(one["messages"])) for one in found] == [1, 1, 1, 1, 1, 2]
    kept = {path.read_bytes() for path in (folder / "out/media").rglob("*.png")}
    assert kept == {path.read_bytes() for path in (folder / "pictures").iterdir()}
    widths = [one["completions"][0]["rewards"]["width"] for one in found]
    assert widths == [16.0, 16.0, 32.0, 16.0, 24.0, 16.0]


@pytest.mark.slow
def test_rows_that_were_chosen_train_with_their_images(folder):
    words = ["generate", "--model", "model", *SEEING, *SMALL, *ROWS, "--output", "out"]
    choose = ["--reward", "reward.py:width", "--select.mode", "best", "--select.truncated"]
    assert main([*words, *choose]) == 0

    learn = ["sft", "--model", "model", *SEEING, "--data", "out/best.jsonl", "--data.chat"]
    quiet = ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
    assert main([*learn, *quiet, "--train.steps", "1", "--output", "sft"]) == 0

    stored = {path.name for path in (folder / "sft/media").rglob("*.png")}
    assert stored == {path.name for path in (folder / "out/media").rglob("*.png")}


@pytest.mark.slow
def test_a_killed_generation_resumes_to_the_same_bytes(folder):
    words = ["generate", "--model", "model", *SEEING, *SMALL, *ROWS, "--rollout.concurrency", "1"]
    assert main([*words, "--output", "whole"]) == 0
    killed = run_in_a_fork(folder, "cut", [*words, "--output", "cut"], fault="save:3")
    assert os.WIFSIGNALED(killed), (folder / "cut.log").read_text()

    assert main([*words, "--output", "cut", "--resume"]) == 0

    whole, cut = (folder / name / "completions.jsonl" for name in ("whole", "cut"))
    assert cut.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_another_image_at_the_same_path_is_not_gone_on_with(folder, capsys):
    (folder / "own").mkdir()
    (folder / "own/a.png").write_bytes(saved(noisy(16, 16)))
    row = {"prompt": "<image>?", "images": ["own/a.png"]}
    (folder / "one.jsonl").write_text(json.dumps(row))
    words = ["generate", "--model", "model", *SEEING, *SMALL, *ROWS[2:], "--data", "one.jsonl"]
    assert main([*words, "--output", "out"]) == 0
    (folder / "own/a.png").write_bytes(saved(noisy(16, 16).rotate(90)))

    assert main([*words, "--output", "out", "--resume"]) == 2
    assert "The data have changed since" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "eval"])
def test_mistakes_are_named_before_a_model_is_loaded(folder, capsys, command):
    def run(*words, model="model", rows="rows.jsonl") -> str:
        data = ["--data", rows, "--data.chat", "--data.image_key", "images"]
        reward = ["--reward", "reward.py:width"]
        name = ["--output", f"out-{command}"]
        assert main([command, "--model", model, *SMALL, *data, *reward, *name, *words]) == 2
        return capsys.readouterr().err

    (folder / "bare").mkdir()
    for path in (folder / "model").iterdir():
        if path.suffix != ".safetensors":
            (folder / "bare" / path.name).symlink_to(path)
    row = {"prompt": "<image>?", "images": ["pictures/none.png"]}
    (folder / "missing.jsonl").write_text(json.dumps(row))
    assert "missing.jsonl:1: there is no image file" in run(
        *SEEING, model="bare", rows="missing.jsonl"
    )
    assert "the model reads text alone. Set --model.vision" in run(model="bare")
    assert "(qwen3) reads text alone" in run(*SEEING, model="text")
    parts = [{"type": "image", "image": "pictures/0.png"}, {"type": "text", "text": "?"}]
    row = {"prompt": [{"role": "user", "content": parts}]}
    (folder / "parts.jsonl").write_text(json.dumps(row))
    words = ["--model", "text", *SMALL, "--data", "parts.jsonl", "--reward", "reward.py:width"]
    assert main([command, *words, "--output", f"out2-{command}"]) == 2
    assert "parts.jsonl:1: the messages have an image" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "eval"])
def test_a_reward_that_reads_text_alone_is_named(folder, capsys, command):
    words = [command, "--model", "model", *SMALL, *ROWS, "--reward", "http"]
    words += ["--reward.http.urls", "http://127.0.0.1:9/", "--output", f"out3-{command}"]

    assert main([*words, *SEEING, "--check"]) == 0

    assert "warning: --reward http reads text alone" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_sees_what_the_plain_model_does(folder):
    words = ["eval", "model", *SEEING, *SMALL, *ROWS, "--reward", "reward.py:width"]
    assert main([*words, "--output", "out"]) == 0

    found = lines(folder / "out/episodes.jsonl")
    for one in found:
        pictures = [folder / "out" / path for path in images_of(one["messages"])]
        text = one["prompt"]
        for image in one["segments"][0]["images"]:
            assert (folder / "out" / image["file"]).is_file()
            text = text.replace("<|image_pad|>" * (image["tokens"][1] - image["tokens"][0]), "#", 1)
        answer = naive_answer(folder, text.replace("#", "<|image_pad|>"), pictures)
        assert one["response"] == answer
    assert [one["reward"] for one in found] == [16.0, 16.0, 32.0, 16.0, 24.0, 16.0]


@pytest.mark.slow
def test_an_environment_that_shows_images_is_evaluated(folder):
    words = ["eval", "model", *SEEING, "--env", "shows.py:Shows", "--rollout.max_length", "200"]
    words += ["--rollout.max_new_tokens", str(LIMIT), "--log.progress", "off", "--output", "out"]
    assert main([*words, "--rollout.multi_turn.max_turns", "2", "--eval.max_samples", "3"]) == 0

    found = lines(folder / "out/episodes.jsonl")
    assert [len(one["segments"][0]["images"]) for one in found] == [2, 2, 2]
    ends = [one["segments"][0]["images"][-1]["tokens"][1] for one in found]
    assert all(
        end <= one["segments"][0]["turns"][-1][0] for one, end in zip(found, ends, strict=True)
    )


@pytest.mark.slow
def test_a_conversation_shows_images_and_saves_their_paths(folder):
    said = "/image pictures/2.png\nhow many?\n/save chat.jsonl\n/image pictures/none.png\n"
    words = [*SEEING, *GREEDY, "--rollout.max_new_tokens", str(LIMIT), "--model.dtype", "float32"]

    code, out, err = through_a_pipe(folder / "model", said, *words)

    assert code == 2
    assert "pictures/2.png: 32 x 16 pixels, with the next message" in err
    assert "/image pictures/none.png: there is no image file pictures/none.png" in err
    (row,) = lines(folder / "chat.jsonl")
    (path,) = images_of(row["messages"])
    assert path.read_bytes() == (folder / "pictures/2.png").read_bytes()
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    text = f"<|im_start|>user\n{image}how many?<|im_end|>\n<|im_start|>assistant\n"
    assert out == naive_answer(folder, text, [path]) + "\n"


def test_engines_of_other_processes_get_the_weights_by_the_models_own_names(folder):
    """As a trainer sends them; the files may have others."""
    plugins = load()
    registered = plugins.get("rlhf_vision_models", "vlm")
    selection = Selection(
        slot="model.vision",
        section="model.vlm",
        registered=registered,
        options=registered.validate({}),
    )
    options = ModelToServe(path="model", vision="vlm")
    sight = open_sight(selection, options, folder / "media", plugins)

    sent = {}
    for bucket in ModelSource(options, "float32", sight).buckets():
        sent |= {name: tensor.clone() for name, tensor in bucket.items()}

    plain = AutoModelForImageTextToText.from_pretrained("model").state_dict()
    assert sent.keys() == plain.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(sent[name], tensor, atol=0.0, rtol=0.0)


def test_an_adapter_is_merged_before_it_sees(folder, capsys):
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    words = ["generate", "--model", "model", *SEEING, *SMALL, *ROWS, "--output", "out"]

    assert main([*words, "--model.adapter", "adapter"]) == 2
    assert "adapter is an adapter. Merge it first: rlhf merge model" in capsys.readouterr().err


def test_a_text_model_is_shown_no_image(folder):
    code, _, err = through_a_pipe(folder / "text", "/image pictures/2.png\n")

    assert code == 2
    assert "/image: the model reads text alone; start rlhf chat with --model.vision" in err
