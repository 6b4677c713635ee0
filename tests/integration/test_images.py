"""``rlhf train`` with a model that sees: images in prompts and observations, bad ones, and going on after a kill."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.images import SHOWS, noisy, saved
from tests.integration.forked_runs import how_to_resume, metrics_without_times, run_in_a_fork
from tests.plugins.vlm.vlm_material import families

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

pytestmark = pytest.mark.slow

SMALL = [
    *("--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "100"),
    *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
]


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    write_tiny_vision_model(
        tmp_path / "model", hidden_size=16, num_heads=2, num_layers=1, vision_layers=1
    )
    (tmp_path / "pictures").mkdir()
    rows = []
    for number in range(6):
        name = f"pictures/{number}.png"
        (tmp_path / name).write_bytes(
            saved(noisy(8 + 8 * (number % 3), 16).rotate(90 * number, expand=True))
        )
        rows.append(
            {"prompt": f"<image>how many? {number}", "images": [name], "answer": str(number)}
        )
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "reward.py").write_text(
        "def score(response):\n    return sum(map(ord, response)) % 7\n"
    )
    (tmp_path / "shows.py").write_text(SHOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


PROMPTS = [
    *("--data", "rows.jsonl", "--data.chat", "--data.image_key", "images"),
    *("--reward", "reward.py:score"),
]
TURNS = [
    *("--executor", "multi_turn", "--env", "shows.py:Shows", "--rollout.multi_turn.max_turns", "2"),
    *("--rollout.max_length", "200"),
]
LONGER = tuple(
    ["400" if word == limit else word for word in words]
    for limit, words in (("100", SMALL), ("200", TURNS))
)
"""Options with room for families whose images have more tokens."""

AGENT = [
    *("--data", "rows.jsonl", "--data.chat", "--data.image_key", "images"),
    *("--executor", "endpoint", "--rollout.max_length", "200"),
    *("--rollout.endpoint.agent", f"{Path(__file__).parents[1]}/plugins/endpoint/sees.py:agent"),
]


def train(output: str, *flags: str, model: str = "model", vision: bool = True) -> int:
    sees = ["--model.vision", "vlm"] if vision else []
    return main(["train", "--model", model, *sees, "--output", output, *SMALL, *flags])


def digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.tobytes()).hexdigest()
        for name, tensor in load_file(folder / "model.safetensors").items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("words", [PROMPTS, TURNS], ids=["prompts", "turns"])
def test_a_run_goes_on_to_the_bit(workspace, words):
    assert train("whole", *words, "--steps", "4", "--checkpoint.every", "2") == 0
    assert train("cut", *words, "--steps", "2", "--checkpoint.every", "2") == 0
    assert train("cut", *words, "--steps", "4", "--resume", "auto") == 0

    assert digests(workspace / "cut/model") == digests(workspace / "whole/model")
    assert digests(workspace / "whole/model") != digests(workspace / "model")
    lines = [
        json.loads(line) for line in (workspace / "cut/samples.jsonl").read_text().splitlines()
    ]
    samples = [sample for line in lines for sample in line.get("samples", [line])]
    images = [image for sample in samples for image in sample["images"]]
    assert images
    for image in images:
        assert (workspace / "cut" / image["file"]).is_file()
        assert image["tokens"][0] < image["tokens"][1]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(PROMPTS, id="prompts", marks=pytest.mark.matrix),
        pytest.param(TURNS, id="turns"),
    ],
)
def test_an_engine_that_sleeps_changes_no_number(workspace, words):
    """To the bit: the visual tower moves out and back with the other weights."""
    for sleep in ("never", "always"):
        assert train(sleep, *words, "--steps", "2", "--runtime.sleep", sleep) == 0

    assert metrics_without_times(workspace / "always") == metrics_without_times(workspace / "never")
    assert digests(workspace / "always/model") == digests(workspace / "never/model")
    assert digests(workspace / "never/model") != digests(workspace / "model")
    lines = (workspace / "always/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["timing"]["moves_s"] > 0 for line in lines] == [True, True]


POINTS = [("generate", 3), ("train", 3), ("save", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(PROMPTS, id="prompts", marks=pytest.mark.matrix),
        pytest.param(TURNS, id="turns"),
    ],
)
def test_a_run_killed_in_any_phase_goes_on_to_the_bit(workspace, words):
    """Under an adapter with a fixed tower, so that fewer weights carry the state of training."""
    import transformers  # noqa: F401  # forks start at once

    frozen = ("--actor.freeze_visual_encoder", "true", "--actor.adapter", "lora")
    more = ("--train.steps", "4", "--checkpoint.every", "2", "--runtime.local.threads", "1")
    run = ["train", "--model", "model", "--model.vision", "vlm", *SMALL, *words, *more, *frozen]
    assert run_in_a_fork(workspace, "whole", [*run, "--output", "whole"]) == 0
    for phase, step in POINTS:
        name = f"{phase}-{step}"
        killed = run_in_a_fork(workspace, name, [*run, "--output", name], fault=f"{phase}:{step}")
        assert os.WIFSIGNALED(killed), (workspace / f"{name}.log").read_text()

        how = how_to_resume(workspace / name)
        again = run_in_a_fork(workspace, name, [*run, "--output", name, "--resume", how])

        assert again == 0, (workspace / f"{name}.log").read_text()
        assert metrics_without_times(workspace / name) == metrics_without_times(workspace / "whole")
        assert adapter_of(workspace / name) == adapter_of(workspace / "whole"), name


@pytest.mark.matrix
@pytest.mark.parametrize("family", families(["llava_onevision", "gemma3n", "gemma4", "glm4v_moe"]))
def test_a_killed_run_of_another_family_goes_on_to_the_bit(workspace, family):
    import transformers  # noqa: F401  # forks start at once

    write_tiny_vision_model(workspace / family, family, hidden_size=16, num_heads=2, num_layers=1)
    seen = ["--model.vlm.tiled", "true"] if family == "llava_onevision" else []
    small, turns = LONGER
    more = ("--train.steps", "4", "--checkpoint.every", "2", "--runtime.local.threads", "1")
    run = ["train", "--model", family, "--model.vision", "vlm", *seen, *small, *turns, *more]
    assert run_in_a_fork(workspace, "whole", [*run, "--output", "whole"]) == 0
    killed = run_in_a_fork(workspace, "cut", [*run, "--output", "cut"], fault="train:3")
    assert os.WIFSIGNALED(killed), (workspace / "cut.log").read_text()

    how = how_to_resume(workspace / "cut")
    again = run_in_a_fork(workspace, "cut", [*run, "--output", "cut", "--resume", how])

    assert again == 0, (workspace / "cut.log").read_text()
    assert digests(workspace / "cut/model") == digests(workspace / "whole/model")
    assert digests(workspace / "whole/model") != digests(workspace / family)
    assert metrics_without_times(workspace / "cut") == metrics_without_times(workspace / "whole")


@pytest.mark.matrix
@pytest.mark.parametrize("family", families(["gemma3n", "gemma4", "glm4v_moe"]))
def test_sampler_and_trainer_agree_where_an_adapter_is_served_merged(workspace, family):
    write_tiny_vision_model(workspace / family, family, hidden_size=16, num_heads=2, num_layers=2)
    small, turns = LONGER
    adapter = ("--actor.adapter", "lora", "--actor.lora.serve", "merged", "--actor.adam.lr", "0.01")
    compared = ("--rollout.compared_share", "1", "--steps", "3")
    run = ["train", "--model", family, "--model.vision", "vlm", "--output", "run"]

    assert main([*run, *small, *turns, *adapter, *compared]) == 0

    assert largest_gap(workspace / "run") < 1e-4
    rates = [
        float((weight**2).sum())
        for name, weight in load_file(workspace / "run/model/adapter_model.safetensors").items()
        if "lora_B" in name
    ]
    assert max(rates) > 0  # what was served was trained


@pytest.mark.slow
def test_a_killed_run_of_an_agent_that_sends_images_goes_on_to_the_bit(workspace):
    import transformers  # noqa: F401  # forks start at once

    run = ["train", "--model", "model", "--model.vision", "vlm", *SMALL, *AGENT]
    run += ["--train.steps", "3", "--checkpoint.every", "1", "--runtime.local.threads", "1"]
    run += ["--rollout.compared_share", "1"]
    assert run_in_a_fork(workspace, "whole", [*run, "--output", "whole"]) == 0
    killed = run_in_a_fork(workspace, "cut", [*run, "--output", "cut"], fault="train:3")
    assert os.WIFSIGNALED(killed), (workspace / "cut.log").read_text()

    again = run_in_a_fork(workspace, "cut", [*run, "--output", "cut", "--resume", "auto"])

    assert again == 0, (workspace / "cut.log").read_text()
    assert metrics_without_times(workspace / "cut") == metrics_without_times(workspace / "whole")
    assert digests(workspace / "cut/model") == digests(workspace / "whole/model")
    assert digests(workspace / "whole/model") != digests(workspace / "model")
    assert largest_gap(workspace / "whole") < 1e-4
    # Beside the images of the prompts there are those that the agent made.
    files = {path.name for path in (workspace / "whole/media").rglob("*.png")}
    assert len(files) > len({path.read_bytes() for path in (workspace / "pictures").iterdir()})


def adapter_of(run: Path) -> str:
    return hashlib.sha256((run / "model/adapter_model.safetensors").read_bytes()).hexdigest()


def test_sampler_and_trainer_agree_in_a_run(workspace):
    assert train("run", *TURNS, "--steps", "2", "--rollout.compared_share", "1") == 0

    assert largest_gap(workspace / "run") < 1e-4


def largest_gap(run: Path) -> float:
    """The largest difference of a token's log-prob between sampler and trainer."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return max(
        value
        for line in lines
        for name, value in line.get("metrics", line).items()
        if name == "mismatch/logprob_diff_max"
    )


def test_every_image_of_a_task_is_in_the_run_folder_once_as_a_link_to_its_file(workspace):
    """No other image is: a step of two prompts takes those of two rows in."""
    assert train("run", *PROMPTS, "--steps", "1") == 0

    files = [path for path in (workspace / "run/media").rglob("*") if path.is_file()]
    contents = {path.read_bytes() for path in (workspace / "pictures").iterdir()}
    kept = [path.read_bytes() for path in files]
    assert set(kept) < contents
    assert len(set(kept)) == len(kept) > 0
    assert all(path.resolve().parent == workspace / "pictures" for path in files)


def test_images_are_copied_where_that_is_asked_for(workspace):
    assert train("run", *PROMPTS, "--steps", "1", "--data.copy_images") == 0

    files = [path for path in (workspace / "run/media").rglob("*") if path.is_file()]
    assert files
    assert not any(path.is_symlink() for path in files)


def test_a_text_model_is_refused_by_name(workspace, capsys):
    write_tiny_model(workspace / "text")

    assert train("run", *PROMPTS, "--steps", "1", model="text") == 2
    assert "the model text (qwen3) reads text alone" in capsys.readouterr().err
    assert train("run2", *PROMPTS, "--steps", "1", vision=False) == 2
    assert "--data.image_key: the run's model reads text alone" in capsys.readouterr().err


def test_a_processor_of_another_model_is_refused(workspace, capsys):
    path = workspace / "model/preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"patch_size": 6}))

    assert train("run", *PROMPTS, "--steps", "1") == 2
    assert "its image processor has patch_size 6, and the model 4" in capsys.readouterr().err


def test_a_bad_image_ends_the_run_before_training_with_its_row(workspace, capsys):
    (workspace / "pictures/3.png").write_bytes(b"nothing")

    assert train("run", *PROMPTS, "--steps", "1") == 2
    assert "rows.jsonl:4: the bytes are not a whole image" in capsys.readouterr().err
    assert not (workspace / "run/metrics.jsonl").exists()


def test_a_bad_image_of_an_environment_is_its_failure(workspace, capsys):
    text = (workspace / "shows.py").read_text()
    (workspace / "shows.py").write_text(text.replace('"image": image}', '"image": b"nothing"}'))

    assert train("run", *TURNS, "--steps", "1") == 1
    assert (
        "an image of the observation cannot be used: the bytes are not" in capsys.readouterr().err
    )


COURSE = [
    *("--train.batch_size", "4", "--data.chat", "--data.image_key", "images"),
    *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
]


LEARNED = {
    "sft": ["--data.form", "response"],
    "dpo": [],
    "rm": [],
    "distill": ["--data.form", "response", "--teacher.path", "teacher"],
    "kto": ["--preference.loss", "kto", "--data.response_key", "response"],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix] if name == "kto" else []) for name in LEARNED],
)
def test_given_answers_to_images_are_learned(workspace, capsys, name):
    write_tiny_vision_model(
        workspace / "teacher", hidden_size=16, num_heads=2, num_layers=1, vision_layers=1, seed=1
    )
    rows = [json.loads(line) for line in (workspace / "rows.jsonl").read_text().splitlines()]
    answers = {"response": "a", "chosen": "b", "rejected": "c", "label": True}
    (workspace / "given.jsonl").write_text("\n".join(json.dumps(row | answers) for row in rows))
    words = ["dpo" if name == "kto" else name, "--model", "model", "--data", "given.jsonl"]
    words += ["--train.steps", "2", *COURSE, *LEARNED[name]]

    assert main([*words, "--model.vision", "vlm", "--output", "run"]) == 0, capsys.readouterr().err

    assert digests(workspace / "run/model") != digests(workspace / "model")
    assert (workspace / "run/model/preprocessor_config.json").is_file()
    stored = [path for path in (workspace / "run/media").rglob("*") if path.is_file()]
    assert len(stored) == len({path.read_bytes() for path in (workspace / "pictures").iterdir()})
    assert main([*words, "--output", "blind"]) == 2
    assert "--data.image_key: the run's model reads text alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["sft", "rm", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("dpo", "kto"))],
)
def test_recorded_rows_name_their_images_which_change_no_weight(workspace, capsys, name):
    rows = [json.loads(line) for line in (workspace / "rows.jsonl").read_text().splitlines()]
    answers = {"response": "a", "chosen": "b", "rejected": "c", "label": True}
    (workspace / "given.jsonl").write_text("\n".join(json.dumps(row | answers) for row in rows))
    words = ["dpo" if name == "kto" else name, "--model", "model", "--model.vision", "vlm"]
    words += ["--data", "given.jsonl", "--eval.fraction", "0.4", *COURSE, *LEARNED[name]]
    words += ["--train.steps", "2"]

    assert main([*words, "--output", "seen", "--log.samples", "4"]) == 0, capsys.readouterr().err
    assert main([*words, "--output", "unseen", "--log.samples", "0"]) == 0, capsys.readouterr().err

    assert digests(workspace / "seen/model") == digests(workspace / "unseen/model")
    for record in ("samples", "eval_samples"):
        lines = (workspace / f"seen/{record}.jsonl").read_text().splitlines()
        samples = list(map(json.loads, lines))
        assert samples, record
        for sample in samples:
            (image,) = sample["images"]
            number = re.search(r"how many\? (\d)", sample["prompt"])[1]
            shown = workspace / "seen" / image["file"]
            assert shown.read_bytes() == (workspace / f"pictures/{number}.png").read_bytes()
            first, end = image["tokens"]
            assert sample["prompt"].count("<|image_pad|>") in (0, end - first)


def test_a_first_stage_trains_the_projector_alone(workspace, capsys):
    rows = [json.loads(line) for line in (workspace / "rows.jsonl").read_text().splitlines()]
    answers = {"response": "a"}
    (workspace / "given.jsonl").write_text("\n".join(json.dumps(row | answers) for row in rows))
    frozen = ["--actor.freeze_visual_encoder", "--actor.freeze_language_model"]
    words = ["sft", "--model", "model", "--data", "given.jsonl", *COURSE, "--model.vision", "vlm"]
    words += [*frozen, "--checkpoint.every", "1"]

    assert main([*words, "--output", "nothing"]) == 2
    assert "freeze_projector false trains it" in capsys.readouterr().err
    words += ["--actor.freeze_projector", "false", "--output", "run"]
    assert main([*words, "--train.steps", "2"]) == 0, capsys.readouterr().err

    before, after = digests(workspace / "model"), digests(workspace / "run/model")
    moved = {name for name in before if after[name] != before[name]}
    assert moved
    assert all(".merger." in name for name in moved)
    again = [*words, "--resume", "auto", "--train.steps", "3", "--actor.projector_lr_ratio", "2"]
    assert main(again) == 2
    assert "--actor.projector_lr_ratio is 2.0, but the checkpoint" in capsys.readouterr().err


def test_a_run_trains_the_parts_that_are_left(workspace):
    frozen = ("--actor.freeze_language_model", "--actor.vision_lr_ratio", "0.5")

    assert train("run", *PROMPTS, "--steps", "1", *frozen) == 0

    before, after = digests(workspace / "model"), digests(workspace / "run/model")
    moved = {name for name in before if after[name] != before[name]}
    assert moved
    assert all("visual." in name for name in moved)


OPENS = """
from PIL import Image

def width(one):
    with Image.open(one.path) as image:
        return image.size[0]

def colors(media):
    return {"reward": sum(map(width, media)) / 64, "images": len(media)}
"""
"""A reward of a user's that opens the images of its samples."""


def metrics(output: Path) -> list[dict]:
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines if "metrics" in line]


def test_a_reward_model_that_was_trained_on_images_sees_them_in_a_run(workspace, capsys):
    """Both it and a function in a file of the user's run in processes of their own."""
    rows = [json.loads(line) for line in (workspace / "rows.jsonl").read_text().splitlines()]
    pairs = "\n".join(json.dumps(row | {"chosen": "b", "rejected": "c"}) for row in rows)
    (workspace / "pairs.jsonl").write_text(pairs)
    words = ["rm", "--model", "model", "--model.vision", "vlm", "--data", "pairs.jsonl", *COURSE]
    assert main([*words, "--train.steps", "2", "--output", "rm"]) == 0, capsys.readouterr().err
    (workspace / "opens.py").write_text(OPENS)
    seeing = [*PROMPTS[:-2], "--reward", "reward_model", "opens.py:colors"]
    seeing += ["--reward.reward_model.path", "rm/model", "--reward.reward_model.vision", "vlm"]

    assert train("run", *seeing, "--steps", "2") == 0, capsys.readouterr().err

    found = metrics(workspace / "run")
    assert len(found) == 2
    assert all(step["rollout/colors/images"] == 1.0 for step in found)
    assert all(0.1 <= step["reward/colors"] <= 0.5 for step in found)
    assert all(step["reward/reward_model"] != 0.0 for step in found)
    assert "reads text alone" not in (workspace / "run/run.log").read_text()


def test_a_reward_model_that_reads_text_alone_is_refused_or_warned_of(workspace, capsys):
    blind = [*PROMPTS[:-2], "--reward", "reward_model", "--reward.reward_model.path", "rm"]

    assert train("run", *blind, "--check") == 2
    assert "cannot be combined with 'images'" in capsys.readouterr().err
    as_chat = ["--reward.reward_model.input", "chat"]
    (workspace / "rm").mkdir()
    assert train("run", *blind, *as_chat, "--check") == 0
    assert "--reward reward_model reads text alone" in capsys.readouterr().err
    assert train("run", *blind, "--reward.reward_model.vision", "vlm", "--check") == 0
    assert "reads text alone" not in capsys.readouterr().err
    text = ["--reward.reward_model.vision", "vlm", "--reward.reward_model.input", "text"]
    assert train("run", *blind, *text, "--check") == 2
    assert "tokens of images are no words" in capsys.readouterr().err
