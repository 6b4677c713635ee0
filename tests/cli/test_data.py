"""``rlhf data``: every bad row by file and line, and what prompts look like."""

import json
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.images import noisy, saved

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

GOOD = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]
BAD = [
    ('{"question": "x"}', "expected a column 'prompt'; the row has question"),
    ('{"prompt": 5}', "expected text or a list of chat messages in column 'prompt', got int 5"),
    ('{"prompt": ""}', "the prompt is empty"),
    ('{"prompt": "x"', "broken JSON: Expecting ',' delimiter at column 15"),
    ('["prompt"]', "expected a JSON object per row, got list"),
    ('{"prompt": "a\\ud800"}', "the prompt has half of a surrogate pair (U+D800) at character 2"),
    ('{"prompt": "a\\u0000"}', "the prompt has a NUL at character 2"),
    ('{"prompt": [{"role": "user"}]}', "message 1: expected text as content, got NoneType"),
]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes lines into a file of the current directory."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, *lines: str | dict) -> str:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
        return name

    return write


def check(capsys, *arguments: str) -> tuple[int, str]:
    code = main(["data", "check", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_good_files_pass_with_a_summary(write, capsys):
    code, output = check(capsys, write("a.jsonl", *GOOD), write("b.jsonl", GOOD[0]))

    assert code == 0
    rows = [line.split() for line in output.splitlines() if line.startswith("│")]
    assert [row[1:8:2] for row in rows] == [["a.jsonl", "2", "2", "0"], ["b.jsonl", "1", "1", "0"]]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[reason[:20] for _, reason in BAD])
def test_a_bad_row_is_named_by_file_and_line(write, capsys, line, reason):
    code, output = check(capsys, write("a.jsonl", GOOD[0], "", line, GOOD[1]))

    assert code == 1
    assert f"a.jsonl:3: {reason}" in output
    assert sum(text.startswith("a.jsonl:") for text in output.splitlines()) == 1


def test_every_bad_row_is_listed_and_counted(write, capsys):
    code, output = check(capsys, write("a.jsonl", *(line for line, _ in BAD), *GOOD))

    assert code == 1
    for number, (_, reason) in enumerate(BAD, start=1):
        assert f"a.jsonl:{number}: " in output
        assert reason in output
    (summary,) = [line.split() for line in output.splitlines() if line.startswith("│ a.jsonl")]
    assert summary[3:8:2] == ["10", "2", "8"]


def test_rows_of_csv_are_named_too(write, capsys):
    code, output = check(capsys, write("a.csv", "prompt,answer", "1+1=,2", ",3", "x"))

    assert code == 1
    assert "a.csv:3: the prompt is empty" in output
    assert "a.csv:4: expected 2 cells as in the header, got 1" in output


def test_labels_are_checked_on_request(write, capsys):
    path = write("a.jsonl", *GOOD, {"prompt": "x"}, {"prompt": "y", "answer": None})

    assert check(capsys, path)[0] == 0
    code, output = check(capsys, path, "--label-key", "answer")
    assert code == 1
    assert "a.jsonl:3: expected a column 'answer'; the row has prompt" in output
    assert "a.jsonl:4: column 'answer' is null" in output
    assert "on_bad_row" not in output, "a run does not leave these rows out"
    assert "A run reads 2 of the bad rows all the same" in output


def test_a_label_may_stand_in_an_object(write, capsys):
    rows = [{"prompt": "a", "reward_model": {"ground_truth": "2"}}, {"prompt": "b"}]
    path = write("a.jsonl", *rows)

    code, output = check(capsys, path, "--label-key", "reward_model.ground_truth")

    assert code == 1
    assert "a.jsonl:1:" not in output
    assert "a.jsonl:2: expected a column 'reward_model.ground_truth'" in output


def test_repeated_ids_are_bad_and_repeated_prompts_a_warning(write, capsys):
    path = write("a.jsonl", *({"prompt": p, "n": n} for p, n in [("x", 1), ("y", 1), ("x", 2)]))

    code, output = check(capsys, path)
    assert code == 0
    assert (
        f"warning: 1 row repeats the prompt of an earlier row of {path}; a.jsonl:3 that of a.jsonl:1"
        in output
    )
    code, output = check(capsys, path, "--id-key", "n")
    assert code == 1
    assert "a.jsonl:2: a.jsonl:1 has n 1 too" in output


def test_a_template_is_tried(write, capsys):
    path = write("a.jsonl", {"q": "x"}, {"p": "y"})

    code, output = check(capsys, path, "--template", "Q: {q}")

    assert code == 1
    assert "a.jsonl:2: expected a column 'q'; the row has p" in output


def test_lengths_are_in_characters_without_a_model(write, capsys):
    path = write("a.jsonl", {"prompt": "abc"}, {"prompt": "abcdef"})

    code, output = check(capsys, path, "--max-prompt-characters", "5")

    assert code == 1
    assert "a.jsonl:2: the prompt has 6 characters, --max-prompt-characters allows 5" in output
    assert "prompt characters" in output


def test_lengths_are_in_tokens_with_a_model(write, capsys, tmp_path):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    path = write("a.jsonl", {"prompt": "abc"}, {"prompt": "abcdef"})

    # as a chat: "user:" + text + new line + "assistant:" = 16 characters more
    code, output = check(capsys, path, "--model", "model", "--chat", "--max-prompt-tokens", "20")

    assert code == 1
    assert "a.jsonl:2: the prompt has 22 tokens, --max-prompt-tokens allows 20" in output
    assert "a.jsonl:1" not in output
    assert "19 / 19 / 19" in output


def test_a_token_limit_needs_a_model(write, capsys):
    code, output = check(capsys, write("a.jsonl", *GOOD), "--max-prompt-tokens", "5")

    assert code == 2
    assert "--max-prompt-tokens needs --model" in output


def test_a_file_that_cannot_be_read_does_not_hide_the_others(write, capsys):
    code, output = check(capsys, "missing.jsonl", write("a.jsonl", "{"))

    assert code == 1
    assert "missing.jsonl: no such file" in output
    assert "a.jsonl:1: broken JSON" in output
    assert "cannot be read" in output


def test_a_malformed_template_is_a_mistake_of_the_user(write, capsys):
    code, output = check(capsys, write("a.jsonl", *GOOD), "--template", "{")

    assert code == 2
    assert output.startswith("error: data.template")


def test_text_cannot_steer_the_terminal(write, capsys):
    main(["data", "show", write("a.jsonl", {"prompt": "\x1b[2Jclear"})])

    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\\x1b[2Jclear" in output


def test_show_prints_prompts_and_columns(write, capsys, tmp_path):
    path = write("a.jsonl", *GOOD, "{")

    assert main(["data", "show", path, "-n", "2", "--template", "Q: {prompt}"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[:4] == [
        "--- a.jsonl:1",
        "Q: 1+1=",
        '  prompt: "1+1="',
        '  answer: "2"',
    ]
    assert "--- a.jsonl:3" not in output
    assert "a.jsonl: 3 rows" in output

    assert main(["data", "show", path]) == 0
    assert "cannot be used: broken JSON" in capsys.readouterr().out


def test_advice_names_the_options_of_this_command(write, capsys, tmp_path):
    write_tiny_model(tmp_path / "model")
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    row = {"prompt": "2+3?", "response": "5", "tools": tools}

    code, output = check(capsys, write("a.jsonl", row), "--model", "model")
    assert (code, "no place for tools. Add --chat" in output) == (1, True)
    code, output = check(capsys, write("b.jsonl", {"question": "x"}))
    assert (code, "Set --prompt-key question or --template" in output) == (1, True)
    assert "--data." not in output


def test_show_renders_chats(write, capsys, tmp_path):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    path = write("a.jsonl", {"prompt": "hi"})

    main(["data", "show", path, "--chat", "--model", "model"])
    assert "user:hi\nassistant:" in capsys.readouterr().out
    main(["data", "show", path, "--chat", "--system-prompt", "be brief"])
    assert "[system] be brief\n[user] hi" in capsys.readouterr().out


def test_checking_imports_no_torch(write):
    path = write("a.jsonl", *GOOD)
    code = (
        "import sys\nfrom rlhf_cli.main import main\n"
        f"assert main(['data', 'check', {path!r}]) == 0\n"
        "heavy = {'torch', 'transformers', 'datasets'} & sys.modules.keys()\nassert not heavy, heavy\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


@settings(
    max_examples=40,
    deadline=None,  # the first example loads plugins
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.sampled_from([*(line for line, _ in BAD), *map(json.dumps, GOOD), ""]), max_size=12)
)
def test_counts_add_up_for_any_mixture(write, capsys, lines):
    rows = [line for line in lines if line]
    bad = [number for number, line in enumerate(lines, 1) if line in dict(BAD)]
    path = write("a.jsonl", *lines)

    code, output = check(capsys, path, "--all")

    if not rows:
        assert code == 1
        return
    assert code == (1 if bad else 0)
    listed = [
        int(line.split(":")[1]) for line in output.splitlines() if line.startswith("a.jsonl:")
    ]
    assert listed == bad
    (summary,) = [line.split() for line in output.splitlines() if line.startswith("│ a.jsonl")]
    assert summary[3:8:2] == [str(len(rows)), str(len(rows) - len(bad)), str(len(bad))]


def test_control_words_are_counted_with_a_model(write, capsys, tmp_path):
    model = str(write_tiny_model(tmp_path / "model"))
    file = write("a.jsonl", {"prompt": "a<eos>"}, GOOD[0])

    code, output = check(capsys, file, "--model", model)
    assert code == 0
    assert "warning: a.jsonl: 1 of 2 rows contain control words" in output
    assert "--data.control_words tokens" in output

    code, output = check(capsys, file, "--model", model, "--control-words", "tokens")
    assert (code, "warning" in output) == (0, False)


def test_check_reads_images_of_conversations(write, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    (tmp_path / "b.png").write_bytes(saved(noisy(64, 64))[:300])

    def row(*parts, answer="three"):
        asked = [*({"type": "image", "image": name} for name in parts), text("how many?")]
        return {
            "talk": [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answer},
            ]
        }

    def text(words):
        return {"type": "text", "text": words}

    rows = [row("a.png"), row("b.png"), row("a.png", "gone.png"), row("a.png", answer=[text("3")])]
    rows += [row("a.png", answer=" "), row(*["a.png"] * 3), {"prompt": "x"}]
    rows.append({"talk": [{"role": "user", "content": "no answer"}]})
    rows.append({"talk": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    file = write("rows.jsonl", *rows)

    code, out = check(capsys, file, "--messages-key", "talk", "--max-images", "2")

    assert code == 1
    assert "rows.jsonl:1:" not in out
    assert "rows.jsonl:2: the image's pixels cannot be decoded" in out
    assert "rows.jsonl:3: there is no image file" in out
    assert "rows.jsonl:4:" not in out
    assert "rows.jsonl:5: message 2" in out
    assert "rows.jsonl:6: there are 3 images in one sequence" in out
    assert "rows.jsonl:7: expected a column 'talk'" in out
    assert "rows.jsonl:8: expected a message of the assistant" in out
    assert "rows.jsonl:9:" not in out


def test_whole_conversations_exclude_a_template(write, capsys):
    file = write("rows.jsonl", {"talk": []})

    assert main(["data", "check", file, "--messages-key", "talk", "--template", "{talk}"]) == 2
    assert "Leave one out" in capsys.readouterr().err


SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho."}]}
PAIR = {"prompt": "Hi", "chosen": "Ho.", "rejected": "Hm."}
LABELED = {"prompt": "Hi", "completion": "Ho.", "label": 1}
STEPS = {"prompt": "1+1?", "completions": ["It is 2."], "labels": [True]}
USER_SEES = {
    "role": "user",
    "content": [{"type": "image", "image": "b.png"}, {"type": "text", "text": "What?"}],
}
SEEN = {"role": "assistant", "content": "Noise."}
KINDS = {
    "sharegpt": (SHAREGPT, ["rlhf sft"]),
    "alpaca": ({"instruction": "Add.", "output": "5"}, ["rlhf sft"]),
    "response": ({"prompt": "Hi", "response": "Ho."}, ["rlhf sft"]),
    "text": ({"text": "Once."}, ["rlhf sft"]),
    "pair": (PAIR, ["rlhf dpo", "rlhf rm"]),
    "labeled": (LABELED, ["rlhf dpo --preference.loss kto"]),
    "steps": (STEPS, ["rlhf prm"]),
    "prompt": ({"prompt": "Hi"}, ["rlhf generate", "rlhf train --reward NAME"]),
}


@pytest.mark.parametrize("form", KINDS)
def test_check_says_the_form_and_the_command_to_run_next(write, capsys, form):
    row, commands = KINDS[form]

    code, out = check(capsys, write("a.jsonl", row, row))

    assert code == 0
    assert out.splitlines()[0].endswith(f" (a.jsonl), as with --data.form {form}")
    assert re.findall("next: (.*)", out) == [
        f"{command} --model MODEL --data a.jsonl" for command in commands
    ]


@pytest.mark.parametrize(
    ("good", "row", "reason"),
    [
        (SHAREGPT, {"conversations": [{"from": "gpt", "value": ""}]}, "says nothing"),
        (PAIR, {**PAIR, "rejected": "Ho."}, "the preferred answer and the other are the same"),
        (PAIR, {**PAIR, "chosen": ""}, "column 'chosen' is empty"),
        (LABELED, {**LABELED, "label": 0.5}, "expected true or false, or 1 or 0; got 0.5"),
        (LABELED, {**LABELED, "completion": None}, "column 'completion' is null"),
        (
            STEPS,
            {**STEPS, "labels": [1, 0]},
            "a label for each of the 1 steps; column 'labels' has 2",
        ),
        ({"prompt": "Hi", "response": "Ho."}, {"prompt": "Hi", "response": "\n"}, "is empty"),
        ({"text": "Once."}, {"text": "a\0"}, "has a NUL"),
        (PAIR, SHAREGPT, "looks like sharegpt (ShareGPT conversations)"),
    ],
)
def test_check_finds_bad_rows_of_each_kind(write, capsys, good, row, reason):
    code, out = check(capsys, write("a.jsonl", good, good, row))

    assert code == 1
    (line,) = [line for line in out.splitlines() if line.startswith("a.jsonl:3")]
    assert reason in line
    assert "--data.on_bad_row skip" in out


def test_check_reads_rows_to_learn_from_with_the_model(write, capsys, tmp_path):
    model = str(write_tiny_model(tmp_path / "model"))
    long = {**PAIR, "chosen": 99 * "x"}

    code, out = check(
        capsys, write("a.jsonl", PAIR, long), "--model", model, "--max-prompt-tokens", "60"
    )

    # A plain pair's longer sequence: "Hi" and "Ho." with the end, a token for each character.
    assert code == 1
    assert "a.jsonl:2: the row has 102 tokens, --data.max_length allows 60" in out
    assert "6 / 6 / 6" in out
    assert f"next: rlhf dpo --model {model} --data a.jsonl --data.on_bad_row skip" in out


def test_check_prints_five_lines_of_a_kind_unless_all_are_wanted(write, capsys):
    file = write("a.jsonl", GOOD[0], *[{"prompt": ""}] * 200, {"prompt": 5})

    code, out = check(capsys, file)
    assert code == 1
    assert sum(line.startswith("a.jsonl:") for line in out.splitlines()) == 6
    assert "  and 195 more: empty (--all lists them)" in out

    _, out = check(capsys, file, "--all")
    assert sum(line.startswith("a.jsonl:") for line in out.splitlines()) == 201


def test_options_by_which_rows_were_read_are_in_the_next_command(write, capsys):
    file = write("my file.jsonl", {"q": "Hi", "a": "x"})

    _, out = check(capsys, file, "--prompt-key", "q", "--chat", "--system-prompt", "Be brief.")

    expected = (
        "--data 'my file.jsonl' --data.prompt_key q --data.system_prompt 'Be brief.' --data.chat"
    )
    assert f"next: rlhf generate --model MODEL {expected}" in out


@pytest.mark.parametrize(
    "chat", [{"messages": [USER_SEES, SEEN]}, {"prompt": [USER_SEES], "images": None}]
)
def test_rows_with_images_are_for_a_model_that_sees(write, capsys, chat):
    noisy().save("b.png")

    code, out = check(capsys, write("a.jsonl", chat))

    assert code == 0
    commands = re.findall("next: (.*)", out)
    assert commands
    assert all(command.endswith("--data a.jsonl --model.vision vlm") for command in commands)


def test_a_form_may_be_named(write, capsys):
    file = write("a.jsonl", {**PAIR, **SHAREGPT})

    assert "preference pairs" in check(capsys, file)[1]
    assert "ShareGPT conversations" in check(capsys, file, "--form", "sharegpt")[1]
    code, out = check(capsys, file, "--form", "chatml")
    assert (code, "--form chatml: expected one of columns, sharegpt" in out) == (2, True)


def test_show_prints_what_is_read_of_a_form(write, capsys):
    main(["data", "show", write("a.jsonl", SHAREGPT)])

    out = capsys.readouterr().out
    assert "[user] Hi\n[assistant] Ho." in out
    assert '  conversations: [{"from": "human"' in out


def test_check_reads_images(write, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    (tmp_path / "b.png").write_bytes(saved(noisy())[:100])
    file = write(
        "rows.jsonl",
        {"prompt": "x", "picture": "a.png"},
        {"prompt": "x", "picture": "b.png"},
        {"prompt": [{"role": "user", "content": [{"type": "image", "path": "c.png"}]}]},
    )

    code, out = check(capsys, file, "--chat", "--image-key", "picture")

    assert code == 1
    assert "rows.jsonl:2: the image's pixels cannot be decoded" in out
    assert "rows.jsonl:3: there is no image file" in out
    assert (
        check(capsys, file, "--chat", "--image-key", "picture", "--max-image-pixels", "9")[0] == 1
    )


def test_show_renders_a_chat_with_the_rows_variables(write, capsys, tmp_path):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    with open(tmp_path / "model" / "chat_template.jinja", "a") as file:
        file.write("{{ '' if thinking | default(true) else '- ' }}")
    rows = [{"prompt": "hi", "chat_template_kwargs": given} for given in ({"thinking": False}, {})]

    main(["data", "show", write("a.jsonl", *rows), "--chat", "--model", "model"])

    assert capsys.readouterr().out.count("assistant:- \n") == 1


@pytest.mark.parametrize(
    ("row", "words", "command"),
    [
        (
            {"question": "1+1=", "solution": "2"},
            ["--prompt-key", "question", "--response-key", "solution"],
            "rlhf sft --model MODEL --data a.jsonl --data.prompt_key question --data.response_key solution",
        ),
        (
            {"question": "1+1=", "good": "2", "bad": "3"},
            ["--prompt-key", "question", "--chosen-key", "good", "--rejected-key", "bad"],
            "rlhf dpo --model MODEL --data a.jsonl --data.prompt_key question --data.chosen_key good "
            "--data.rejected_key bad",
        ),
    ],
)
def test_rows_with_columns_of_their_own_are_checked_by_the_columns_names(
    write, capsys, row, words, command
):
    name = write("a.jsonl", row)

    code, output = check(capsys, name)
    assert code == 1
    assert "data: no known form (a.jsonl). Name its columns: --prompt-key, with" in output

    code, output = check(capsys, name, *words)
    assert code == 0, output
    assert f"next: {command}" in " ".join(output.split())
