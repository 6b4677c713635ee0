"""Reward functions that a script defines itself: a copy that can be imported, or the reason why there is none."""

import ast

import pytest

from rlhf_plugin_migrate.trl.own_functions import OwnFunctions
from rlhf_plugin_migrate.trl.python_script import read_script

SCRIPT = """
import re
from unsloth import FastLanguageModel
tokenizer = FastLanguageModel.from_pretrained("m")[1]
END = "</a>"
PATTERN = re.compile(rf"<a>(.*){END}")
text = tokenizer.decode([1])
calls = 0

def found(text):
    return PATTERN.search(text)

@staticmethod
def scored(completions, answer, **kwargs):
    global calls
    calls += 1
    texts = [one[0]["content"] for one in completions]
    return [float(found(text) is not None) for text in texts]

def ends(completions, **kwargs):
    return [float(one.endswith(tokenizer.eos_token)) for one in completions]
"""


@pytest.fixture
def functions():
    return OwnFunctions(ast.parse(SCRIPT), SCRIPT, "my runs/Qwen3-(4B).py")


def test_a_function_is_copied_with_all_that_it_uses_and_no_more(functions):
    assert functions.copy("scored") == "qwen3__4b_functions.scored"

    names = {}
    exec(functions.text.replace("@staticmethod\n", ""), names)
    chats = [[{"role": "assistant", "content": text}] for text in ("<a>1</a>", "1")]

    assert names["scored"](chats, answer=["1", "1"]) == [1.0, 0.0]
    assert names["calls"] == 1
    assert "tokenizer" not in functions.text
    assert "@staticmethod\ndef scored" in functions.text


@pytest.mark.parametrize("name", ["ends", "text", "nowhere", "FastLanguageModel"])
def test_what_a_script_computes_cannot_be_copied(functions, name):
    assert functions.copy(name) == ""
    assert functions.text == ""


def test_a_function_that_stays_is_reported_and_the_others_are_used():
    found = read_script(
        SCRIPT + "trainer = GRPOTrainer(model='m', reward_funcs=[scored, ends])\n", "a.py"
    )

    assert found.keys["reward_funcs"] == ["a_functions.scored"]
    assert "def ends" not in found.files["a_functions.py"]
    (left_out,) = found.left_out
    assert left_out.text == "reward_funcs: ends"
    assert "this uses what it computes" in left_out.problem
