"""The run that is measured has the prompts, images and lengths that were asked for."""

import argparse
import json
from pathlib import Path

from benchmarks import our_step, shapes

from rlhf_cli.main import main as rlhf
from rlhf_testing.tiny import write_tiny_model

WORKLOAD = {"model": "m", "prompts": 2, "samples": 3, "prompt_tokens": 5, "response_tokens": 7}


def test_prompts_have_images_of_their_own_and_room_for_their_tokens(tmp_path):
    arguments = argparse.Namespace(**WORKLOAD, steps=2, images=2, image_side=56, options=[])

    options = our_step.train_options(arguments, tmp_path)

    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    files = [file for row in rows for file in row["images"]]
    assert [len(row["images"]) for row in rows] == [2, 2, 2, 2]
    assert len({Path(file).read_bytes() for file in files}) == 8
    assert options["data.max_prompt_tokens"] == 5 + 2 * (2 * 2 + 2)
    assert options["model.vision"] == "vlm"


def test_without_images_nothing_is_said_of_them(tmp_path):
    arguments = argparse.Namespace(**WORKLOAD, steps=1, images=0, image_side=448, options=["a=b"])

    options = our_step.train_options(arguments, tmp_path)

    assert options["data.max_prompt_tokens"] == 5
    assert options["a"] == "b"
    assert not {"model.vision", "data.image_key"} & set(options)


def test_a_model_that_sees_may_get_rows_of_text(tmp_path):
    words = ["model.vision=vlm"]
    arguments = argparse.Namespace(**WORKLOAD, steps=1, images=0, image_side=448, options=words)

    options = our_step.train_options(arguments, tmp_path)

    assert options["model.vision"] == "vlm"
    assert options["data.image_key"] == ""


def test_the_plan_beside_a_measurement_is_that_of_the_options_that_the_run_chose(tmp_path, capsys):
    write_tiny_model(tmp_path / "model")
    given = {**WORKLOAD, "model": tmp_path / "model", "steps": 1}
    arguments = argparse.Namespace(
        **given, images=0, image_side=448, options=["backend.torch.gradient_checkpointing=true"]
    )
    options = our_step.train_options(arguments, tmp_path)
    our_step.step_records(options)
    config = tmp_path / "run" / "config.toml"
    # What the memory planner chooses on a machine with a GPU stands in the record alone.
    recorded = config.read_text()
    assert "max_tokens_per_micro_batch = 16384" in recorded
    config.write_text(recorded.replace("batch = 16384", "batch = 24"))
    capsys.readouterr()

    assert rlhf(["plan", *our_step.plan_words(options, arguments), "--gpu=h200"]) == 0

    assert "micro-batches of 24 tokens" in capsys.readouterr().out


def test_an_image_has_a_token_for_each_square_of_28_pixels_and_two_around():
    assert shapes.image_tokens(448) == 16 * 16 + 2
