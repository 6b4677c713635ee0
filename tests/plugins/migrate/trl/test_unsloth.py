"""Scripts and notebooks of Unsloth, which loads the model, puts an adapter on it, and hands both to TRL."""

import json

import pytest

from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_plugin_migrate.trl.notebook import code_of
from rlhf_plugin_migrate.trl.python_script import read_script
from rlhf_testing.errors import has_code

LOADS = """
from unsloth import FastLanguageModel
max_seq_length = 1024
lora_rank = 32
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/meta-Llama-3.1-8B-Instruct",
    max_seq_length = max_seq_length,
    load_in_4bit = False,
    fast_inference = True,
    max_lora_rank = lora_rank,
    gpu_memory_utilization = 0.9,
)
model = FastLanguageModel.get_peft_model(
    model, r = lora_rank, target_modules = ["q_proj"], lora_alpha = lora_rank * 2,
    use_gradient_checkpointing = "unsloth", random_state = 3407,
)
"""
GRPO = (
    LOADS
    + """
max_prompt_length = 256
def short(completions, **kwargs):
    return [-float(len(one[0]["content"])) for one in completions]
args = GRPOConfig(
    learning_rate = 5e-6, per_device_train_batch_size = 1, num_generations = 6, max_steps = 250,
    max_prompt_length = max_prompt_length,
    max_completion_length = max_seq_length - max_prompt_length,
    output_dir = "outputs", report_to = "none",
)
trainer = GRPOTrainer(
    model = model, processing_class = tokenizer, reward_funcs = [short], args = args,
    train_dataset = load_dataset("json", data_files="rows.jsonl", split="train"),
)
"""
)
SFT = (
    LOADS
    + """
trainer = SFTTrainer(
    model = model, tokenizer = tokenizer, train_dataset = load_dataset("my/rows", split="train"),
    dataset_text_field = "text", max_seq_length = max_seq_length, packing = False,
    args = SFTConfig(per_device_train_batch_size = 2, max_steps = 60),
)
"""
)


def test_model_adapter_and_lengths_are_those_of_the_calls():
    found = read_script(GRPO, "a.py")

    assert found.keys["model_name_or_path"] == "unsloth/meta-Llama-3.1-8B-Instruct"
    assert found.keys["vllm_max_model_length"] == 1024
    assert found.keys["vllm_gpu_memory_utilization"] == 0.9
    assert found.keys["use_vllm"] is True
    assert (found.keys["lora_r"], found.keys["lora_alpha"]) == (32, 64)
    assert found.keys["max_completion_length"] == 1024 - 256
    assert [one.text for one in found.left_out] == ["per_device_train_batch_size: 1"]


def test_a_batch_has_whole_groups_as_unsloth_makes_it():
    assert read_script(GRPO, "a.py").keys["per_device_train_batch_size"] == 6
    whole = GRPO.replace(
        "num_generations = 6", "num_generations = 6, gradient_accumulation_steps = 6"
    )
    assert read_script(whole, "a.py").keys["per_device_train_batch_size"] == 1


def test_unsloths_default_is_a_base_in_4_bits_with_an_adapter():
    text = GRPO.replace("    load_in_4bit = False,\n", "")

    assert read_script(text, "a.py").keys["load_in_4bit"] is True
    alone = text.replace("model = FastLanguageModel.get_peft_model(", "other = print(")
    assert "load_in_4bit" not in read_script(alone, "a.py").keys


def test_arguments_that_trainers_had_earlier_are_read():
    found = read_script(SFT, "a.py")

    assert found.keys["max_length"] == 1024
    assert found.keys["dataset_text_field"] == "text"
    assert found.left_out == []


def test_another_chat_template_is_reported():
    text = SFT.replace(
        "trainer =", "tokenizer = get_chat_template(tokenizer, 'llama-3.1')\ntrainer ="
    )

    (left_out,) = read_script(text, "a.py").left_out

    assert "it gets another chat template" in left_out.problem


def test_one_of_several_algorithms_is_chosen_by_name():
    both = SFT + GRPO.removeprefix(LOADS)

    assert read_script(both, "a.py", "grpo").script == "grpo"
    assert read_script(both, "a.py", "sft").script == "sft"
    with pytest.raises(
        ConfigError, match="--script grpo", check=has_code("migrate/number-of-configurations")
    ):
        read_script(both, "a.py")


def notebook(*sources):
    cells = [{"cell_type": "code", "source": source.splitlines(True)} for source in sources]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Text"]}, *cells]})


def test_commands_of_a_notebook_are_taken_out():
    text = notebook("%%capture\nif True:\n    !pip install unsloth\n", "%%bash\necho no\n", "a = 1")

    assert code_of(text, "n.ipynb") == "pass\nif True:\n    pass\n\n\na = 1"


@pytest.mark.parametrize("text", ["[]", "a = 1", '{"cells": [1]}'])
def test_a_file_that_is_no_notebook_is_refused(text):
    with pytest.raises(ConfigError, match=r"n\.ipynb", check=has_code("migrate/invalid-python")):
        code_of(text, "n.ipynb")


def test_a_notebook_becomes_a_configuration_that_trains(
    run, workspace, tmp_path, tiny_model, capsys
):
    (tmp_path / "My GRPO.ipynb").write_text(notebook("!pip install unsloth", GRPO))

    migrated = run("My GRPO.ipynb")

    assert migrated.code == 0, migrated.report
    assert migrated.config["rollout"]["max_length"] == 1024
    assert migrated.config["data"]["max_prompt_tokens"] == 256
    assert migrated.config["rollout"]["batch_size"] == 1
    assert migrated.config["train"]["batch_size"] == 6
    assert migrated.config["reward"]["use"] == ["run_reward.py:short"]
    assert "def short" in (tmp_path / "my_grpo_functions.py").read_text()
    words = ["train", "-c", "run.toml", "--model", str(tiny_model), "--engine", "embedded"]
    assert main([*words, "--dry-run"]) == 0, capsys.readouterr().err
