"""The recipe ``gsm_symbolic``: its questions, and ten steps of it with a model of the same class made tiny."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rlhf_config import read_toml, resolve
from rlhf_core.plugins import load
from rlhf_testing.tiny import tiny_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "gsm_symbolic"
DEFAULTS = EXAMPLE.parents[1] / "cli/src/rlhf_cli/defaults.toml"
NAMES = ("Ana", "Ben", "Cem", "Dua", "Eli")


@pytest.fixture
def prepare(monkeypatch):
    """The example's ``prepare.py``, with a library that asks for sums: few enough that some are asked twice."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=sums))
    spec = importlib.util.spec_from_file_location("gsm_symbolic_prepare", EXAMPLE / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sums(name: str, *, seed: int, size: int):
    """Questions as reasoning-gym makes them: number i is a function of seed + i."""
    assert name == "gsm_symbolic"
    for number in range(seed, seed + size):
        first, second = number % 7, number // 7 % 7
        who = NAMES[number % len(NAMES)]
        yield {
            "question": f"{who} has {first} apples and gets {second}. How many are there?",
            "answer": first + second,
        }


def written(prepare: ModuleType, folder: Path, monkeypatch, *flags: str) -> dict[str, list[dict]]:
    monkeypatch.setattr(sys, "argv", ["prepare.py", "--output", str(folder), *flags])
    prepare.main()
    return {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held_out")
    }


def test_no_question_is_asked_twice_and_none_that_is_held_out_is_learned(
    prepare, tmp_path, monkeypatch
):
    rows = written(prepare, tmp_path, monkeypatch, "--train", "60", "--held-out", "20")

    asked = {name: [row["question"] for row in part] for name, part in rows.items()}
    assert {name: len(set(part)) for name, part in asked.items()} == {"train": 60, "held_out": 20}
    assert not set(asked["train"]) & set(asked["held_out"])
    assert rows["train"][0] == {
        "question": "Ana has 0 apples and gets 0. How many are there?",
        "answer": "0",
    }


def test_too_few_different_questions_are_an_error(prepare, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="of 300 questions are different"):
        written(prepare, tmp_path, monkeypatch, "--train", "300", "--held-out", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "further", [(), ("larger.toml",), ("lora.toml",)], ids=["all weights", "larger", "lora"]
)
def test_ten_steps_with_a_tiny_qwen2_train_and_evaluate(prepare, tmp_path, monkeypatch, further):
    from rlhf_cli.main import main

    here = tmp_path / "examples" / "gsm_symbolic"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns("data"))
    written(prepare, here / "data", monkeypatch, "--train", "60", "--held-out", "8")
    model = tiny_qwen2(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    files = ("run.toml", *further)
    words = [word for file in files for word in ("-c", f"examples/gsm_symbolic/{file}")]

    code = main(
        [
            *("train", *words, "--model", str(model), "--steps", "10", "--output", "run"),
            # Sizes alone are smaller; a compiler is not what is tested here.
            *("--rollout.batch_size", "4", "--rollout.max_new_tokens", "16", "--eval.every", "5"),
            *("--backend.torch.compile", "false", "--log.progress", "off"),
        ]
    )

    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "timing" in record]
    evaluations = [record["eval"] for record in records if "eval" in record]
    assert code == 0
    assert [record["step"] for record in steps] == list(range(1, 11))
    assert len(evaluations) == 3
    assert all("eval/held_out/T0/pass@1" in one for one in evaluations)


@pytest.mark.parametrize("further", ["larger.toml", "lora.toml", "lora64.toml"])
def test_what_a_further_file_says_is_used(further, monkeypatch):
    monkeypatch.chdir(EXAMPLE.parents[1])
    files = [read_toml(EXAMPLE / name) for name in ("run.toml", further)]

    assert resolve([read_toml(DEFAULTS, defaults=True), *files], load()).unused == ()


@pytest.mark.slow
def test_a_tiny_teacher_is_distilled_on_the_students_own_samples(prepare, tmp_path, monkeypatch):
    """The recipe ``distill_0.5b``, which learns from this one's larger model on this one's questions."""
    from rlhf_cli.main import main

    here = tmp_path / "examples" / "gsm_symbolic"
    written(prepare, here / "data", monkeypatch, "--train", "60", "--held-out", "8")
    student = tiny_qwen2(tmp_path / "student")
    teacher = tiny_qwen2(tmp_path / "teacher", seed=1)
    monkeypatch.chdir(tmp_path)

    code = main(
        [
            *("train", "-c", str(EXAMPLE.parent / "distill_0.5b/run.toml"), "--output", "run"),
            *("--model", str(student), "--algo.teacher.path", str(teacher), "--steps", "2"),
            *("--rollout.batch_size", "4", "--rollout.max_new_tokens", "16"),
            *("--backend.torch.compile", "false", "--log.progress", "off"),
        ]
    )

    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    steps = [record["metrics"] for record in records if "timing" in record]
    assert code == 0
    assert len(steps) == 2
    assert all(step["distill/kl"] > 0 for step in steps)


def tiny_qwen2(folder: Path, *, seed: int = 0) -> Path:
    """Write a random model of the recipe's class, with a character tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
