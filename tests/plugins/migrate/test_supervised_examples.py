"""The commands of OpenRLHF's README and scripts that learn from examples, for ``rlhf sft``, ``rm`` and ``dpo``."""

import re
import tomllib

import pytest

from rlhf_cli.main import main


@pytest.mark.parametrize(
    ("name", "command", "files"),
    [
        ("sft", "sft", ["run.toml"]),
        ("sft_flat", "sft", ["run-1.toml", "run-2.toml"]),
        ("rm", "rm", ["run.toml"]),
        ("dpo", "dpo", ["run-1.toml", "run-2.toml", "run-3.toml"]),
    ],
)
def test_the_command_of_the_head_accepts_the_result(example, capsys, name, command, files):
    migrated = example(f"{name}.sh")

    assert migrated.code == 0, migrated.report
    assert "Not understood" not in migrated.report
    for file in files:
        with open(file) as text:
            head = " ".join(text.read().replace("# ", "").split())
        assert f"Run it with: rlhf {command} -c FILE." in head
        assert main([command, "-c", file, "--check"]) == 0, capsys.readouterr().err
        assert main([command, "-c", file, "--dry-run"]) == 0
        said = capsys.readouterr().err
        missing = set(re.findall(r"needs (\w+)\S* \(not installed\)", said))
        assert missing <= {"ray", "deepspeed"}  # those of `make test-scale`
        assert ("not ready" in said) == bool(missing)


def test_supervised_fine_tuning(example):
    config = example("sft.sh").config

    assert config["runtime"] == {"name": "ray", "ray": {"ranks": {"policy": 8}}}
    assert config["data"] == {
        "train": ["rows.jsonl"],
        "max_samples": 500000,
        "max_length": 4096,
        "on_too_long": "truncate",
        "on_bad_row": "skip",
        "template": "User: {question}\nAssistant: ",
        "response_key": "answer",
    }
    assert config["train"] == {
        "batch_size": 256,
        "epochs": 1,
        "max_tokens_per_micro_batch": 2 * 4096,
    }
    # OpenRLHF's schedule is a cosine, ours is constant; warm-up, floor, betas and decay are the same in both.
    assert config["actor"] == {"lr_schedule": "cosine", "adam": {"lr": 5e-6}}
    assert config["log"]["to"] == ["wandb"]
    assert config["checkpoint"] == {"keep": 3, "every": 0}


def test_conversations_with_an_adapter_and_plain_text(example):
    example("sft_flat.sh")
    with open("run-1.toml", "rb") as file:
        chat = tomllib.load(file)
    with open("run-2.toml", "rb") as file:
        text = tomllib.load(file)

    assert chat["runtime"]["ray"]["ranks"]["policy"] == 8
    assert chat["actor"]["adapter"] == "qlora"
    assert chat["actor"]["qlora"] == {
        "rank": 64,
        "alpha": 64,
        "dropout": 0.05,
        "target": ["q_proj", "v_proj"],
    }
    assert (chat["data"]["messages_key"], chat["data"]["learn"]) == ("messages", "all")
    assert chat["eval"] == {"data": ["rows.jsonl"], "at_start": False, "every": 100}
    assert text["data"]["text_key"] == "question"
    assert text["backend"]["deepspeed"]["sequence_parallel"] == 2


def test_a_reward_model_whose_launcher_names_no_number(example):
    migrated = example("rm.sh")

    assert migrated.config["runtime"]["ray"]["ranks"] == {"reward_model": 1}
    assert "--processes N says how many" in " ".join(migrated.report.split())
    assert migrated.config["train"]["max_tokens_per_micro_batch"] == 2 * 8192
    assert migrated.config["resume"] == {"checkpoint": "auto"}
    with_number = example("rm.sh", "--processes", "8", output="eight.toml")
    assert with_number.config["runtime"]["ray"]["ranks"] == {"reward_model": 8}


def test_preferences(example):
    example("dpo.sh")
    losses = []
    for number in (1, 2, 3):
        with open(f"run-{number}.toml", "rb") as file:
            losses.append(tomllib.load(file))

    assert [each["preference"] for each in losses] == [
        {"dpo": {"beta": 0.1}},
        {
            "nll_coef": 0.2,
            "loss": "cdpo",
            "cdpo": {"beta": 0.05, "label_smoothing": 0.1},
        },
        {"loss": "ipo", "ipo": {"beta": 0.2}},
    ]
    assert losses[1]["data"]["template"] == "Q: {prompt}\nA: "
    assert losses[1]["actor"]["lora"] == {"rank": 16, "alpha": 16}
    assert [each["data"]["max_length"] for each in losses] == [8192, 1024, 512]
