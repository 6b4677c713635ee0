"""Arguments of the calls in Python scripts of TRL's users: each sets a key, or is reported."""

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_migrate.trl.python_script import read_script
from rlhf_testing.errors import has_code


def _left_out(text: str) -> list[str]:
    return [one.text for one in read_script(text, "a.py").left_out]


def test_every_unread_dictionary_of_options_is_reported():
    assert _left_out("SFTConfig(**first, seed=1, **second)") == ["**: first", "**: second"]


@pytest.mark.parametrize(
    "options",
    [
        "dict(max_length=64, seed=f())",
        "{'max_length': 64, 'seed': f()}",
        "{**base, 'seed': f()}",
        "base | {'seed': f()}",
    ],
)
def test_what_a_dictionary_of_options_shows_is_read_and_the_rest_reported(options):
    found = read_script(f"base = dict(max_length=64)\nall = {options}\nSFTConfig(**all)", "a.py")

    assert found.keys == {"max_length": 64}
    assert [one.text for one in found.left_out] == ["seed: f()"]


@pytest.mark.parametrize("options", ["[1, 2]", "5", "{3: 4}", "{KEY: 4}"])
def test_options_that_are_no_dictionary_of_names_are_reported(options):
    found = read_script(f"c = {options}\nSFTConfig(seed=1, **c)", "a.py")

    assert found.keys == {"seed": 1}
    assert [one.text.partition(":")[0] for one in found.left_out] == ["**"]


@pytest.mark.parametrize("value", ["...", "1j", "b'x'.decode()", "{[]: 1}"])
def test_a_literal_that_no_file_has_is_reported(value):
    assert _left_out(f"SFTConfig(max_length={value})") == [f"max_length: {value}"]


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        (
            "SFTTrainer('m', None, None, None, None, None, None, metrics)",
            ["compute_metrics: metrics"],
        ),
        (
            f"DPOTrainer('m', reference, {'None, ' * 9}None, 13)",
            ["ref_model: reference", "argument 13: 13"],
        ),
        (f"GRPOTrainer('m', {'None, ' * 10}tools)", ["tools: tools"]),
        (
            "SFTTrainer('m', args=SFTConfig('out', 5), *rest)",
            ["argument 2: 5", "argument 2: *rest"],
        ),
        ("SFTTrainer('m', peft_config=LoraConfig('CAUSAL_LM', 8))", ["peft_config, argument 2: 8"]),
        ("SFTTrainer('m', peft_config=LoraConfig(bias='all'))", ["peft_config, bias: 'all'"]),
        ("SFTTrainer('m', peft_config=LoraConfig(bias='none', rank_pattern=None))", []),
        ("SFTTrainer('m', processing_class=AutoTokenizer.from_pretrained('m'))", []),
        ("SFTTrainer('m', processing_class=tokenizer)", ["processing_class: tokenizer"]),
        (
            "SFTTrainer('m', processing_class=AutoTokenizer.from_pretrained('other'))",
            ["processing_class: AutoTokenizer.from_pretrained('other')"],
        ),
    ],
)
def test_arguments_that_set_no_key_are_reported(script, reported):
    assert _left_out(script) == reported


def test_an_argument_that_is_none_is_as_one_left_out():
    found = read_script(
        "nothing = None\nSFTTrainer('m', args=None, eval_dataset=None, peft_config=nothing, callbacks=None)",
        "a.py",
    )

    assert (found.keys, found.left_out) == ({"model_name_or_path": "m"}, [])


def test_none_in_a_configuration_is_a_value():
    assert read_script("SFTConfig(max_length=None)", "a.py").keys == {"max_length": None}


@pytest.mark.parametrize("given", ["**rest", "*rest", "**{'args': parsed}"])
def test_a_trainer_that_may_have_a_configuration_has_not_the_defaults(given):
    with pytest.raises(ConfigError, check=has_code("migrate/number-of-configurations")):
        read_script(f"SFTTrainer('m', {given})", "a.py")


def test_a_trainer_s_arguments_are_read_of_a_dictionary_that_is_written_out():
    text = "rest = dict(model='m', args=SFTConfig(seed=1), callbacks=[watch])\nSFTTrainer(**rest)"

    found = read_script(text, "a.py")

    assert found.keys == {"seed": 1, "model_name_or_path": "m"}
    assert [one.text for one in found.left_out] == ["callbacks: [watch]"]


def test_what_a_model_is_loaded_with_is_read_or_reported():
    loaded = "from_pretrained('m', torch_dtype=torch.bfloat16, revision='v2', device_map='auto', num_labels=1, **more)"

    found = read_script(f"SFTTrainer(AutoModelForCausalLM.{loaded})", "a.py")

    assert found.keys == {"model_name_or_path": "m", "dtype": "bfloat16", "model_revision": "v2"}
    assert [one.text for one in found.left_out] == ["model, num_labels: 1", "model, **: more"]


def test_a_further_trainer_is_reported():
    text = "args = SFTConfig()\nSFTTrainer('other')\nSFTTrainer('m', args=args)\nDPOTrainer('n')\nMine('o', args=args)"

    found = read_script(text, "a.py")

    assert found.keys == {"model_name_or_path": "m"}
    assert {one.text: one.problem for one in found.left_out} == {
        "SFTTrainer('other')": "line 2: one trainer is migrated, that of line 3",
        "DPOTrainer('n')": "line 4: one trainer is migrated, that of line 3",
        "Mine('o', args=args)": "line 5: one trainer is migrated, that of line 3",
    }


def test_the_arguments_of_a_trainer_of_one_s_own_are_reported():
    found = read_script("args = SFTConfig(seed=1)\nMine('m', args=args)", "a.py")

    assert found.keys == {"seed": 1}
    assert [one.problem for one in found.left_out] == [
        "line 2: it is no trainer of TRL that is read; its arguments set nothing"
    ]


def test_a_list_of_rewards_that_grows_is_left_out():
    text = "rewards = ['accuracy_reward']\nrewards.append(more)\nGRPOTrainer('m', rewards)"

    found = read_script(text, "a.py")

    assert "reward_funcs" not in found.keys
    assert _left_out(text) == ["reward_funcs: rewards"]
