"""``rlhf template``: what a template does, in sentences, with an exit code; and a tokenizer with another one."""

import json
from copy import copy
from pathlib import Path

import pytest
from tests.libs.data.chat.zoo import KINDS, tokenizer_of
from transformers import AutoTokenizer

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


PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def bare(tmp_path):
    """A tokenizer without a chat template, and a file with one."""
    tokenizer = copy(tokenizer_of("characters"))  # other tests have the same object
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "bare")
    (tmp_path / "plain.jinja").write_text(PLAIN)
    return str(tmp_path / "bare"), str(tmp_path / "plain.jinja"), tmp_path / "out"


def test_a_tokenizer_is_written_with_another_template_and_nothing_else_changes(bare, capsys):
    before, file, out = bare

    code = main(["template", "write", before, file, str(out)])

    output = capsys.readouterr().out
    assert code == 0
    assert f"--model.tokenizer {out}" in output
    assert "A turn ends with <eos>" in output
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (before, out))
    assert (old.chat_template, new.chat_template) == (None, PLAIN)
    assert old.get_vocab() == new.get_vocab()
    assert old.encode("What is 6 x 7?") == new.encode("What is 6 x 7?")
    chat = [{"role": "user", "content": "Hi"}]
    shown = new.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert shown == f"<user>Hi{new.eos_token}<assistant>"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{% for m in", "template"),
        ("{{ raise_exception('no users') }}", "no users"),
        (None, "UTF-8"),
    ],
)
def test_a_template_that_is_none_or_renders_nothing_writes_nothing(bare, capsys, text, named):
    before, file, out = bare
    Path(file).write_bytes(b"\xff" if text is None else text.encode())

    code = main(["template", "write", before, file, str(out)])

    assert code == 2
    assert named in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_with_files_is_not_written_to(bare, capsys):
    before, file, out = bare
    out.mkdir()
    (out / "notes.txt").write_text("mine")

    code = main(["template", "write", before, file, str(out)])

    assert code == 2
    assert "Name another folder" in capsys.readouterr().err
    assert [each.name for each in out.iterdir()] == ["notes.txt"]
