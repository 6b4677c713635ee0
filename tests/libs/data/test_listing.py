import shlex

import pytest

from rlhf_cli.main import main
from rlhf_config.run import DataConfig
from rlhf_data.listing import listing_command


def test_usual_options_are_left_out():
    assert (
        listing_command(DataConfig(), ["my f.jsonl"], None) == "rlhf data check --all 'my f.jsonl'"
    )


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"system_prompt": "Be brief."}, "no place for the system prompt"),
        ({"prompt_key": "question", "split": "test"}, "missing column"),
        ({"template": "{a} {question}"}, "missing column"),
        ({"chat": True, "prompt_key": "question"}, "missing column"),
    ],
)
def test_the_command_finds_what_the_run_found(tmp_path, capsys, options, kind):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n' * 7)

    command = shlex.split(listing_command(DataConfig(**options), [str(rows)], None))

    assert main(command[1:]) == 1
    printed = capsys.readouterr().out
    assert kind in printed
    assert f"{rows}:7" in printed


def test_tokens_are_counted_by_the_model():
    data = DataConfig(max_prompt_tokens=7, control_words="tokens")

    assert listing_command(data, ["f"], "a/model") == (
        "rlhf data check --all --max-prompt-tokens 7 --control-words tokens --model a/model f"
    )
