"""``rlhf generate`` as a user runs it: what a line says is what a plain Transformers model computes."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_plugin_inference.generate.answering import Answerer
from rlhf_trainer.inference import seed_of


def texts(lines):
    return [[one["text"] for one in line["completions"]] for line in lines]


def plain(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def naive_greedy(folder, text, limit=6):
    """Text and sum of log-probs of the most probable tokens, each found by a forward pass over the whole sequence."""
    model, tokenizer = plain(folder)
    tokens, start, total = tokenizer(text)["input_ids"], len(tokenizer(text)["input_ids"]), 0.0
    while len(tokens) < start + limit and (len(tokens) == start or tokens[-1] != 2):
        logprobs = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(int(logprobs.argmax()))
        total += float(logprobs.max())
    return tokenizer.decode(tokens[start:], skip_special_tokens=True), total, len(tokens) - start


def test_greedy_completions_are_those_of_a_slow_loop(generate, base):
    lines = generate("--rollout.temperature", "0")

    assert [line["prompt"] for line in lines] == [f"{n}+1=" for n in range(9)]
    for line in lines:
        (one,) = line["completions"]
        text, logprob, tokens = naive_greedy(base, line["prompt"])
        assert (one["text"], one["tokens"]) == (text, tokens)
        assert one["logprob"] == pytest.approx(logprob, abs=1e-4)
        assert line["prompt_tokens"] == 4


def test_a_sampled_completion_has_the_seed_of_its_name_and_the_logprob_of_its_tokens(
    generate, base
):
    lines = generate("--rollout.n_samples_per_prompt", "3", "--seed", "7")

    model, tokenizer = plain(base)
    checked = 0
    for index, line in enumerate(lines):
        for sample, one in enumerate(line["completions"]):
            assert one["seed"] == seed_of(7, "generate", index, sample)
            if one["stop"] != "length" or any(c not in tokenizer.get_vocab() for c in one["text"]):
                continue
            prompt = tokenizer(line["prompt"])["input_ids"]
            answer = tokenizer(one["text"], add_special_tokens=False)["input_ids"]
            if len(answer) != one["tokens"]:
                continue  # a special token was written, which the text does not show
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1)[range(len(answer)), answer].sum()
            assert one["logprob"] == pytest.approx(float(expected), abs=1e-3)
            checked += 1
    assert checked > 9
    assert len({text for group in texts(lines) for text in group}) > 20, "samples differ"


def test_a_completion_does_not_depend_on_what_is_generated_beside_it(generate):
    together = generate("--rollout.n_samples_per_prompt", "3")
    alone = generate(
        "--rollout.n_samples_per_prompt", "3", "--rollout.concurrency", "1", output="b"
    )
    fewer = generate("--rollout.n_samples_per_prompt", "2", "--data.max_samples", "4", output="c")

    assert together == alone
    assert texts(fewer) == [group[:2] for group in texts(together)[:4]]


def test_another_seed_gives_other_completions(generate):
    assert texts(generate("--seed", "1")) != texts(generate("--seed", "2", output="b"))


def test_a_chat_is_rendered_and_its_messages_are_kept(generate):
    *_, line = generate("--data.system_prompt", "count", data="chats.jsonl")

    assert line["messages"] == [
        {"role": "system", "content": "count"},
        {"role": "user", "content": "2?"},
    ]
    assert line["prompt"] == "system:count\nuser:2?\nassistant:"
    assert line["dataset"] == "chats"


def test_the_chat_template_gets_the_variables_of_run_and_row(generate, base, folder, capsys):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template += "{{ '' if thinking | default(true) else '- ' }}"
    (folder / "model").unlink()
    shutil.copytree(base, folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [{"prompt": [{"role": "user", "content": "2?"}]} for _ in range(2)]
    rows[1]["chat_template_kwargs"] = {"thinking": True}
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")

    off, on = generate("--data.chat_template_kwargs.thinking", "false", data="rows.jsonl")

    assert off["prompt"] == "user:2?\nassistant:- "
    assert on["prompt"] == "user:2?\nassistant:"
    assert (off["chat_template_kwargs"], on["chat_template_kwargs"]) == (
        {"thinking": False},
        {"thinking": True},
    )
    assert off["prompt_tokens"] == on["prompt_tokens"] + 2
    generate("--data.chat_template_kwargs.thinkin", "false", data="rows.jsonl", output="b", code=2)
    assert "reads thinking. Did you mean 'thinking'?" in capsys.readouterr().err


def test_scores_are_those_of_the_rewards_and_add_up_with_their_weights(generate):
    """With weights 1 and 2: reward = ones + 2 length / 10."""
    words = ["--reward", "rewards.py:ones", "rewards.py:length", "--reward.length.weight", "2"]

    for line in generate(*words, "--rollout.n_samples_per_prompt", "2"):
        for one in line["completions"]:
            ones, length = one["text"].count("1"), len(one["text"]) / 10
            assert one["rewards"] == {"ones": ones, "length": length}
            assert one["reward"] == pytest.approx(ones + 2 * length)


def test_a_reward_sees_the_columns_of_the_row(generate, folder):
    (folder / "row.py").write_text("def answer(row):\n    return float(row['answer'])\n")

    lines = generate("--reward", "row.py:answer")

    assert [line["completions"][0]["reward"] for line in lines] == list(range(1, 10))


@pytest.mark.parametrize("serve", ["auto", "merged"])
def test_an_adapters_completions_are_those_of_the_merged_model(
    generate, base, write_adapter, serve, capsys
):
    pytest.importorskip("peft")
    write_adapter(base)
    assert main(["merge", "model", "adapter", "merged", "--same-base"]) == 0
    merged = generate(model="merged", output="a")

    with_adapter = generate("--model.adapter", "adapter", "--model.serve", serve, output="b")

    where = "merged into the weights" if serve == "merged" else "beside the base's weights"
    assert f"adapter adapter: {where} (" in capsys.readouterr().err
    assert texts(with_adapter) == texts(merged)
    for one, other in zip(with_adapter, merged, strict=True):
        (ours,), (theirs,) = one["completions"], other["completions"]
        # Six log-probs of float32: a sum beside the base is rounded otherwise than within its weights.
        assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=1e-5 * ours["tokens"])
    assert texts(with_adapter) != texts(generate(output="c"))


def test_the_number_of_engines_changes_no_byte(generate, folder):
    words = ["--rollout.n_samples_per_prompt", "3", "--reward", "rewards.py:ones"]
    generate(*words, output="one")

    for number in ("2", "3"):
        generate(*words, "--engines", number, output=number)
        assert (folder / number / "completions.jsonl").read_bytes() == (
            folder / "one" / "completions.jsonl"
        ).read_bytes()


def test_stop_strings_and_end_of_sequence_are_named(generate):
    stops = {
        one["stop"]
        for line in generate("--rollout.n_samples_per_prompt", "40", "--rollout.stop", "1")
        for one in line["completions"]
    }

    assert stops == {"eos", "string", "length"}


def test_the_summary_counts_everything(generate, capsys):
    lines = generate("--rollout.n_samples_per_prompt", "2", "--reward", "rewards.py:ones")

    out = capsys.readouterr().out
    answers = [one for line in lines for one in line["completions"]]
    rewards = [one["reward"] for one in answers]
    assert re.search(r"^prompts +9$", out, re.MULTILINE)
    assert re.search(r"^completions +18$", out, re.MULTILINE)
    mean = f"{sum(rewards) / 18:.4g} ({min(rewards):.4g} to {max(rewards):.4g})"
    assert re.search(rf"^reward +{re.escape(mean)}$", out, re.MULTILINE)
    assert "completions: out/completions.jsonl" in out


@pytest.mark.parametrize(
    ("words", "text", "error_code"),
    [
        (
            ["--select.mode", "best"],
            "it compares rewards, and there is none. Add --reward NAME.",
            "config/no-reward",
        ),
        (
            ["--select.mode", "pairs", "--reward", "rewards.py:ones"],
            "Set it to 2 or more",
            "config/too-few-samples-per-prompt",
        ),
        (
            ["--select.mode", "rejection", "--reward", "rewards.py:ones"],
            "expected --select.threshold X",
            "config/no-threshold",
        ),
        (
            ["--select.threshold", "1"],
            "would change nothing: nothing has to reach it",
            "config/no-effect",
        ),
        (["--select.truncated"], "would change nothing: nothing is chosen", "config/no-effect"),
        (
            ["--rollout.temperature", "0", "--rollout.n_samples_per_prompt", "2"],
            "all 2 completions of a prompt would be the same",
            "config/equal-samples",
        ),
        (
            ["--rollout.temperature", "0", "--rollout.top_p", "0.5"],
            "at temperature 0 nothing is drawn",
            "config/no-effect",
        ),
        (
            ["--rollout.min_new_tokens", "7"],
            "expected at most --rollout.max_new_tokens, which is 6",
            "config/min-above-max-tokens",
        ),
        (["--model.dtype", "float16"], "--model.dtype", "config/out-of-range"),
        (["--rollout.batch_size", "4"], "rollout.batch_size", "config/unknown-option"),
        (
            ["--data.prompt_key", "question"],
            "no row of prompts.jsonl has the column 'question'",
            "data/missing-column",
        ),
        (["--model.adapter", "nowhere"], "there is no such folder", "config/unusable-path"),
    ],
)
def test_bad_input_is_exit_code_two_with_a_message(
    generate, capsys, monkeypatch, words, text, error_code
):
    monkeypatch.setenv("RLHF_ERRORS", "json")
    generate(*words, code=2)

    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert text in error["message"]
    assert error["code"] == error_code


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ({"data": "nowhere.jsonl"}, "there is no such file"),
        ({"model": "nowhere/at/all"}, "there is no such folder"),
        ({"output": "model"}, "there is a model in this folder"),
    ],
)
def test_a_wrong_path_is_exit_code_two_with_a_message(generate, capsys, paths, text):
    generate(code=2, **paths)

    assert text in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused(folder, capsys):
    words = ["generate", "--model", "model", "--data", "prompts.jsonl", "--output", "prompts.jsonl"]

    assert main(words) == 2
    assert "prompts.jsonl is a file" in capsys.readouterr().err


def test_check_and_dry_run_generate_nothing(generate, folder, capsys):
    generate("--check")
    assert "The configuration is valid." in capsys.readouterr().out
    generate("--dry-run", "--rollout.n_samples_per_prompt", "4")
    assert "4 completions of up to 6 tokens" in capsys.readouterr().out
    assert not (folder / "out").exists()


def test_the_recorded_configuration_repeats_the_run(generate, folder):
    first = generate("--rollout.n_samples_per_prompt", "2", "--reward", "rewards.py:ones")

    assert main(["generate", "-c", "out/config.toml", "--output", "again"]) == 0

    again = (folder / "again" / "completions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in again] == first


def test_a_reward_that_fails_ends_the_run_and_says_how_to_go_on(generate, capsys):
    generate("--reward", "rewards.py:broken", code=1)

    err = capsys.readouterr().err
    assert "no score today" in err
    assert "the same command with --resume continues" in err


def test_an_engine_that_breaks_in_the_middle_costs_what_was_under_way_alone(
    generate, folder, monkeypatch
):
    whole = generate(output="whole")
    answer = Answerer.answer

    async def breaking(self, task):
        if task.uid.prompt == 5:
            raise RuntimeError("the device is gone")
        return await answer(self, task)

    monkeypatch.setattr(Answerer, "answer", breaking)
    with pytest.raises(RuntimeError, match="the device is gone") as caught:
        generate()
    assert "the same command with --resume continues" in " ".join(caught.value.__notes__)
    kept = (folder / "out" / "completions.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in kept] == [0, 1, 2, 3, 4]

    monkeypatch.setattr(Answerer, "answer", answer)
    assert generate("--resume") == whole


def test_completions_that_a_reward_dropped_have_none_and_are_not_chosen(generate, capsys):
    words = ["--reward", "rewards.py:broken", "--reward.broken.on_error", "drop"]

    lines = generate(*words, "--select.mode", "best", "--select.truncated")

    assert {one["reward"] for line in lines for one in line["completions"]} == {None}
    assert "prompts left out: no completion to choose from  9" in capsys.readouterr().out
