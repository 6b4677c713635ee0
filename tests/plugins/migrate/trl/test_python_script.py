"""Python scripts of TRL's users: what their text says, and a line for each value that it does not show."""

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_migrate.trl.python_script import read_script

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


def test_a_script_s_keys_are_those_of_trl_s_own_script():
    found = read_script(GRPO, "a.py")

    assert found.script == "grpo"
    assert found.keys == {
        "output_dir": "out",
        "learning_rate": 1e-5,
        "num_generations": 4,
        "model_name_or_path": "Qwen/Qwen3-0.6B",
        "reward_funcs": ["think_format_reward", "my_rewards.exact"],
        "dataset_name": "trl-lib/DeepMath-103K",
        "dataset_train_split": "train",
        "use_peft": True,
        "lora_r": 16,
        "lora_target_modules": ["q_proj"],
    }


def test_what_the_text_does_not_show_has_its_reason():
    left_out = {one.text: one.problem for one in read_script(GRPO, "a.py").left_out}

    assert left_out == {
        "run_name: named()": "line 13: the text does not show its value",
        "reward_funcs: short": "line 17: the script is not imported; write it into a file as a function of response "
        "and columns, and add it to reward.use as FILE.py:short",
        "callbacks: [watch]": "line 20: the text does not show its value",
    }


def test_a_name_that_is_bound_twice_shows_no_value():
    found = read_script("lr = 1\nlr = 2\nargs = DPOConfig(learning_rate=lr)", "a.py")

    assert (found.script, found.keys) == ("dpo", {})
    assert [one.text for one in found.left_out] == ["learning_rate: lr"]


def test_a_model_and_sets_are_read_where_they_are_loaded():
    text = """
model = AutoModelForCausalLM.from_pretrained("my/model", dtype="bfloat16")
trainer = SFTTrainer(model, args=SFTConfig(max_length=64), train_dataset=load_dataset("a/b", "c", split="train"),
                     eval_dataset=load_dataset("a/b", split="test"))
"""

    assert read_script(text, "a.py").keys == {
        "max_length": 64,
        "model_name_or_path": "my/model",
        "dataset_name": "a/b",
        "dataset_config": "c",
        "dataset_train_split": "train",
        "dataset_test_split": "test",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "a.py, line 1: not valid Python"),
        ("parser = TrlParser((GRPOConfig, ModelConfig))", "found 0.*migrate the launch"),
        ("SFTConfig()\nDPOConfig()", "expected one call of GRPOConfig, SFTConfig or DPOConfig"),
    ],
)
def test_a_script_without_one_configuration_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        read_script(text, "a.py")
