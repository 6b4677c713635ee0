"""From a file of rows to the trained model by commands that the tool itself prints, each one by the one before."""

import io
import json
import re
import shlex

import pytest

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import QUIET

ASKED, BLUE, DOG = (
    {"role": role, "content": content}
    for role, content in (("user", "Name a color."), ("assistant", "Blue."), ("assistant", "Dog."))
)
TURNS = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
FORMS = {
    "sharegpt": (["sft"], {"conversations": [{"from": "system", "value": "Be brief."}, *TURNS]}),
    "alpaca": (["sft"], {"instruction": "Add.", "input": "2 and 3", "output": "5"}),
    "json_text": (["sft"], {"messages": json.dumps([ASKED, BLUE])}),
    "trl": (["sft"], {"prompt": [ASKED], "completion": [BLUE]}),
    "hh_rlhf": (
        ["dpo", "rm"],
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Yes?",
            "rejected": "\n\nHuman: Hi\n\nAssistant: No.",
        },
    ),
    "ultrafeedback": (
        ["dpo", "rm"],
        {"prompt": "Name a color.", "chosen": [ASKED, BLUE], "rejected": [ASKED, DOG]},
    ),
    "kto": (["dpo"], {"prompt": [ASKED], "completion": [BLUE], "label": True}),
}


def printed(out: str) -> list[list[str]]:
    """Words of the commands that an output says come next, without ``rlhf``."""
    return [shlex.split(line) for line in re.findall(r"^next:? +rlhf (.*)$", out, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_each_command_prints_the_next_one(tmp_path, monkeypatch, capsys, form):
    write_tiny_model(tmp_path / "MODEL", hidden_size=16, num_layers=1, num_heads=2)
    monkeypatch.chdir(tmp_path)
    commands, row = FORMS[form]
    # KTO compares answers beside the prompts of others, so there are several.
    lines = (json.dumps(row).replace("Name a", f"{number}: name a") + "\n" for number in range(4))
    (tmp_path / "rows.jsonl").write_text("".join(lines))

    assert main(["data", "check", "rows.jsonl"]) == 0
    trainings = printed(capsys.readouterr().out)
    assert [words[0] for words in trainings] == commands
    for words in trainings:
        assert main([*words, "--steps", "1", "--train.batch_size", "2", *QUIET]) == 0
        (following,) = printed(capsys.readouterr().out)
        assert following == ["serve-rm" if words[0] == "rm" else "chat", f"runs/{words[0]}/model"]
        if following[0] == "chat":
            monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
            assert main(following) == 0
            assert capsys.readouterr().out.strip()
