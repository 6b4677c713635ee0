"""``rlhf template check``: what a template does, in sentences, with an exit code."""

import json

import pytest
from tests.libs.data.chat.zoo import KINDS, tokenizer_of

from rlhf_cli.main import main


@pytest.fixture
def saved(tmp_path):
    def save(name):
        tokenizer = tokenizer_of(name)
        tokenizer.eos_token, before = KINDS[name].end, tokenizer.eos_token
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        tokenizer.eos_token = before
        return str(tmp_path / "tokenizer")

    return save


def check(capsys, *arguments):
    code = main(["template", "check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_template_that_keeps_everything_is_fine(saved, capsys):
    code, output, _ = check(capsys, saved("characters"))

    assert code == 0
    assert (
        "A conversation that goes on begins with what the policy read and wrote before." in output
    )
    assert "DRIFT" not in output
    assert "[I][t][ ][i][s][ ][4][2][.][<eos>]" in output


def test_a_template_that_drops_thoughts_drifts(saved, capsys):
    code, output, errors = check(capsys, saved("thinking"))

    assert code == 1
    assert "DRIFT  Thoughts of earlier turns are dropped" in output
    assert "calls are read as hermes" in output
    assert "stop tokens are the tokenizer's" in errors


def test_a_template_that_rewrites_the_prompt_drifts(saved, capsys):
    code, output, _ = check(capsys, saved("rewriting"))

    assert code == 1
    assert "does not begin with what was read and written" in output


def test_facts_are_json_for_programs(saved, capsys, tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "look"}}]))

    code, output, _ = check(capsys, saved("mistral"), "--tools", str(tools), "--json")

    found = json.loads(output)
    assert (code, found["drifts"]) == (1, True)
    assert found["facts"]["tools_move"] is True
    assert found["facts"]["call_form"] == "mistral"
    assert [part["name"] for part in found["example"]] == ["prompt", "answer", "next prompt"]
    assert "look" in "".join(found["example"][0]["tokens"])


@pytest.mark.parametrize("text", ["{", "[]", "[1]"])
def test_a_file_that_has_no_tools_is_refused(saved, capsys, tmp_path, text):
    (tmp_path / "tools.json").write_text(text)

    code, _, errors = check(capsys, saved("chatml"), "--tools", str(tmp_path / "tools.json"))

    assert code == 2
    assert "--tools" in errors
    assert "expected" in errors


def test_a_tokenizer_without_a_template_is_an_error(tmp_path, capsys):
    tokenizer = tokenizer_of("chatml")
    template, tokenizer.chat_template = tokenizer.chat_template, None
    tokenizer.save_pretrained(tmp_path)
    tokenizer.chat_template = template

    code, _, errors = check(capsys, str(tmp_path))

    assert code == 2
    assert "expected a tokenizer with a chat template" in errors
