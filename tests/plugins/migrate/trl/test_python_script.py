"""Python scripts of TRL's users: what their text says, and a line for each value that it does not show."""

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_migrate.trl.python_script import read_script
from rlhf_testing.errors import has_code

GRPO = """
from datasets import load_dataset
from my_rewards import exact
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward

MODEL = "Qwen/Qwen3-0.6B"
dataset = load_dataset("trl-lib/DeepMath-103K", split="train")

def short(completions, **kwargs):
    return [-len(one) for one in completions]

args = GRPOConfig("out", learning_rate=1e-5, num_generations=4, run_name=named())
trainer = GRPOTrainer(
    model=MODEL,
    args=args,
    reward_funcs=[short, think_format_reward, exact],
    train_dataset=dataset,
    peft_config=LoraConfig(r=16, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    callbacks=[watch],
)
"""


CHANGED = "it is changed after the configuration is made; write it into the configuration"


def test_a_script_s_keys_are_those_of_trl_s_own_script():
    found = read_script(GRPO, "a.py")

    assert found.script == "grpo"
    assert found.keys == {
        "output_dir": "out",
        "learning_rate": 1e-5,
        "num_generations": 4,
        "model_name_or_path": "Qwen/Qwen3-0.6B",
        "reward_funcs": ["a_functions.short", "think_format_reward", "my_rewards.exact"],
        "dataset_name": "trl-lib/DeepMath-103K",
        "dataset_train_split": "train",
        "use_peft": True,
        "lora_r": 16,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "lora_target_modules": ["q_proj"],
    }


def test_what_the_text_does_not_show_has_its_reason():
    left_out = {one.text: one.problem for one in read_script(GRPO, "a.py").left_out}

    assert left_out == {
        "run_name: named()": "line 13: the text does not show its value",
        "callbacks: [watch]": "line 20: the text does not show its value",
    }


def test_a_trainer_without_a_configuration_has_the_defaults():
    """As the first example of TRL's README."""
    text = """
dataset = load_dataset("trl-lib/DeepMath-103K", split="train")
trainer = GRPOTrainer(model="Qwen/Qwen3-0.6B", reward_funcs=accuracy_reward, train_dataset=dataset)
trainer.train()
"""
    found = read_script("from trl.rewards import accuracy_reward" + text, "a.py")

    assert (found.script, found.left_out) == ("grpo", [])
    assert found.keys == {
        "model_name_or_path": "Qwen/Qwen3-0.6B",
        "reward_funcs": ["accuracy_reward"],
        "dataset_name": "trl-lib/DeepMath-103K",
        "dataset_train_split": "train",
    }


@pytest.mark.parametrize("given", ["'m', args, None, data", "'m', args=args, train_dataset=data"])
def test_arguments_by_position_are_read_as_those_by_name(given):
    text = f"args = SFTConfig(max_length=64)\ndata = load_dataset('a/b')\nSFTTrainer({given})"

    found = read_script(text, "a.py")

    assert found.keys == {"max_length": 64, "model_name_or_path": "m", "dataset_name": "a/b"}
    assert found.left_out == []


def test_options_in_a_dictionary_are_read_where_it_is_written_out():
    text = "common = {'max_length': 64}\nSFTTrainer('m', args=SFTConfig(seed=1, **common))"

    assert read_script(text, "a.py").keys == {
        "seed": 1,
        "max_length": 64,
        "model_name_or_path": "m",
    }


def test_what_a_script_sets_apart_from_the_calls_is_said_to_be_left_out():
    text = """
args = SFTConfig(max_length=64, learning_rate=1e-5, **common)
args.learning_rate = 1e-6
if small:
    args.max_steps += 5
SFTTrainer("m", args=args, peft_config=LoraConfig(r=8, **lora), **rest)
other.max_length = 5
"""
    found = read_script(text, "a.py")

    assert found.keys == {
        "max_length": 64,
        "model_name_or_path": "m",
        "use_peft": True,
        "lora_r": 8,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
    }
    assert {one.text: one.problem for one in found.left_out} == {
        "**: common": "line 2: the text does not show its value",
        "args.learning_rate = 1e-06": f"line 3: {CHANGED}",
        "args.max_steps += 5": f"line 5: {CHANGED}",
        "peft_config, **: lora": "line 6: the text does not show its value",
        "**: rest": "line 6: the text does not show its value",
    }


def test_a_name_that_is_bound_twice_shows_no_value():
    found = read_script("lr = 1\nlr = 2\nargs = DPOConfig(learning_rate=lr)", "a.py")

    assert (found.script, found.keys) == ("dpo", {})
    assert [one.text for one in found.left_out] == ["learning_rate: lr"]


def test_a_model_and_sets_are_read_where_they_are_loaded():
    text = """
model = AutoModelForCausalLM.from_pretrained("my/model", dtype="bfloat16")
trainer = SFTTrainer(model, args=SFTConfig(max_length=64), train_dataset=load_dataset("a/b", "c", split="train"),
                     eval_dataset=load_dataset("a/b", "c", split="test"))
"""

    assert read_script(text, "a.py").keys == {
        "max_length": 64,
        "model_name_or_path": "my/model",
        "dtype": "bfloat16",
        "dataset_name": "a/b",
        "dataset_config": "c",
        "dataset_train_split": "train",
        "dataset_test_split": "test",
    }


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("def f(:", "a.py, line 1: not valid Python", "invalid-python"),
        (
            "parser = TrlParser((GRPOConfig, ModelConfig))",
            "found 0.*migrate the launch",
            "number-of-configurations",
        ),
        ("SFTTrainer('m', args=parsed)", "found 0.*migrate the launch", "number-of-configurations"),
        (
            "SFTTrainer('m')\nDPOTrainer('n')",
            "expected one call of GRPOConfig, SFTConfig or DPOConfig",
            "number-of-configurations",
        ),
        (
            "SFTConfig()\nDPOConfig()",
            "expected one call of GRPOConfig, SFTConfig or DPOConfig",
            "number-of-configurations",
        ),
    ],
)
def test_a_script_without_one_configuration_is_refused(text, said, code):
    with pytest.raises(ConfigError, match=said, check=has_code(f"migrate/{code}")):
        read_script(text, "a.py")


def test_what_a_script_leaves_unset_has_the_defaults_of_what_it_calls():
    """PEFT's and Transformers', where TRL's own scripts have others."""
    text = "SFTTrainer(AutoModelForCausalLM.from_pretrained('m'), peft_config=LoraConfig(lora_alpha=4))"

    assert read_script(text, "a.py").keys == {
        "model_name_or_path": "m",
        "dtype": "auto",
        "use_peft": True,
        "lora_r": 8,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
    }
