"""Values that Python scripts of TRL's users change: none of them is migrated as it was before, or lost in silence."""

import pytest

from rlhf_plugin_migrate.trl.python_script import read_script

CHANGED = "it is changed after the configuration is made; write it into the configuration"


@pytest.mark.parametrize(
    "change",
    [
        "common['max_length'] = 128",
        "common.update(max_length=128)",
        "common.setdefault('max_length', 128)",
        "common.pop('max_length')",
        "common |= {'max_length': 128}",
        "del common['max_length']",
        "same = common\nsame['max_length'] = 128",
        "for common['max_length'] in (1, 2): pass",
        "def raise_it(given): given['max_length'] = 128\nraise_it(common)",
        "def raise_it():\n    global common\n    common = {}\nraise_it()",
        "for common in others: pass",
    ],
)
def test_options_that_are_changed_after_they_are_bound_are_left_out(change):
    found = read_script(f"common = {{'max_length': 64}}\n{change}\nSFTConfig(**common)", "a.py")

    assert found.keys == {}
    assert [one.text for one in found.left_out] == ["**: common"]


@pytest.mark.parametrize(
    "change", ["modules.append('v')", "modules += ['v']", "modules.extend(more)"]
)
def test_a_list_that_grows_is_left_out(change):
    text = f"modules = ['q']\n{change}\nSFTTrainer('m', peft_config=LoraConfig(target_modules=modules))"

    found = read_script(text, "a.py")

    assert "lora_target_modules" not in found.keys
    assert [one.text for one in found.left_out] == ["lora_target_modules: modules"]


@pytest.mark.parametrize(
    "read",
    [
        "print(common)",
        "common.get('seed')",
        "lengths = {**common}",
        "def f(common): common['a'] = 1",
    ],
)
def test_options_that_are_only_read_or_share_their_name_are_migrated(read):
    found = read_script(f"common = {{'max_length': 64}}\n{read}\nSFTConfig(**common)", "a.py")

    assert (found.keys, found.left_out) == ({"max_length": 64}, [])


@pytest.mark.parametrize(
    ("script", "statement"),
    [
        ("args: SFTConfig = SFTConfig(max_length=1)", "args.max_length = 5"),
        ("args = SFTConfig(max_length=1)", "args.max_length: int = 5"),
        ("args = SFTConfig(max_length=1)", "trainer.args.max_length = 5"),
        ("args = SFTConfig(max_length=1)", "self.args.max_length = 5"),
        ("args = SFTConfig(max_length=1)", "setattr(args, 'max_length', 5)"),
        ("args = SFTConfig(max_length=1)", "a = args.max_length = 5"),
        ("args = SFTConfig(max_length=1)", "args.max_length, b = (5, 6)"),
        ("args = SFTConfig(max_length=1)", "b, (args.max_length, *c) = read()"),
        ("args, b = SFTConfig(max_length=1), 2", "args.max_length += 5"),
        ("args = b = SFTConfig(max_length=1)", "b.max_length = 5"),
        ("args = None\nargs = SFTConfig(max_length=1)", "args.max_length = 5"),
        ("args = SFTConfig(max_length=1)\nsame = args", "same.max_length = 5"),
        ("self.made = SFTConfig(max_length=1)", "self.made.max_length = 5"),
        ("args = SFTConfig(max_length=[1])", "args.max_length.append(5)"),
        ("args = SFTConfig(max_length={})", "args.max_length['a'] = 5"),
        ("(args := SFTConfig(max_length=1))", "args.max_length = 5"),
        ("def made(): return SFTConfig(max_length=1)\nargs = made()", "args.max_length = 5"),
        ("main(SFTConfig(max_length=1))\ndef main(a, seed=2):", "    a.max_length = 5"),
        ("main(seed=2, a=SFTConfig(max_length=1))\ndef main(a, seed):", "    a.max_length = 5"),
    ],
)
def test_what_is_set_in_a_configuration_is_left_out(script, statement):
    found = read_script(f"{script}\n{statement}", "a.py")

    assert "max_length" not in found.keys
    said = {one.text: one.problem for one in found.left_out}
    assert said == {statement.strip(): f"line {script.count(chr(10)) + 2}: {CHANGED}"}


@pytest.mark.parametrize(
    "statement",
    [
        "setattr(args, name, 5)",
        "vars(args).update(more)",
        "args.__dict__['max_length'] = 5",
        "args.set_training(learning_rate=0.1)",
    ],
)
def test_a_change_of_what_the_text_does_not_name_is_reported(statement):
    found = read_script(f"args = SFTConfig(max_length=1)\n{statement}", "a.py")

    assert [(one.text, one.problem) for one in found.left_out] == [
        (statement, f"line 2: {CHANGED}")
    ]


def test_a_configuration_that_the_text_does_not_show_to_be_the_trainer_s_is_reported():
    text = "args = SFTConfig(max_length=1)\nargs = replace(args, max_length=5)\nSFTTrainer('m', args=args)"

    found = read_script(text, "a.py")

    assert [one.text for one in found.left_out] == ["args: args"]
    assert "the configuration of line 1, whose values are taken" in found.left_out[0].problem


def test_what_is_set_in_a_trainer_or_a_tokenizer_is_reported():
    text = """
tokenizer = AutoTokenizer.from_pretrained("m")
tokenizer.pad_token = tokenizer.eos_token
tokenizer.chat_template = TEMPLATE
trainer = SFTTrainer("m", processing_class=tokenizer)
trainer.train_dataset = shorter
trainer.train(resume_from_checkpoint="out/checkpoint-5")
del tokenizer, trainer
"""
    found = read_script(text, "a.py")

    assert found.keys == {"model_name_or_path": "m", "resume_from_checkpoint": "out/checkpoint-5"}
    assert {one.text: one.problem for one in found.left_out} == {
        "tokenizer.chat_template = TEMPLATE": "line 4: it is changed after the tokenizer is made; put it into the "
        "tokenizer's folder, and set model.tokenizer",
        "trainer.train_dataset = shorter": "line 6: it is changed after the trainer is made; give it to the trainer",
    }


def test_a_token_of_a_service_is_not_repeated():
    found = read_script(
        "args = SFTConfig()\nargs.hub_token = 'hf_secret'\nargs.eos_token = 'end'", "a.py"
    )

    assert [one.text for one in found.left_out] == [
        "args.hub_token = ...",
        "args.eos_token = 'end'",
    ]
