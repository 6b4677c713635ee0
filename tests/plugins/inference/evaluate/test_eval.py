"""``rlhf eval`` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys

import pytest

from rlhf_cli.main import main
from rlhf_plugin_inference.evaluate.playing import EnginePlayer

from .conftest import DATA, LONG, SMALL


@pytest.mark.slow
def test_an_evaluation_has_the_numbers_of_the_one_within_a_training_run(evaluate, folder):
    options = ["--eval.temperatures", "0", "1", "--eval.n_samples", "4", "--seed", "7"]
    options += ["--eval.metrics", "majority", "distinct", "--eval.distinct.n", "1"]
    _, *others = (folder / "prompts.jsonl").read_text().splitlines()
    (folder / "others.jsonl").write_text("\n".join(others) + "\n")
    train = [*SMALL, "--model", "model", "--data", "others.jsonl", "--eval.data", "prompts.jsonl"]
    train += ["--reward", "rewards.py:ones", "--steps", "1", "--rollout.batch_size", "2"]
    train += ["--output", "run", "--log.curve", "false", "--log.tensorboard", "false"]
    assert main(["train", *train, *options, "--checkpoint.export", "false"]) == 0
    records = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    own = next(one["eval"] for one in records if "eval" in one)

    _, sets = evaluate(*DATA, *options)

    for summary in sets:
        prefix = f"eval/prompts/T{summary['temperature']:g}"
        assert own[f"{prefix}/reward"] == summary["reward"]["value"]
        assert own[f"{prefix}/truncated"] == summary["truncated"]
        assert own[f"{prefix}/response_length"] == summary["tokens_out"] / summary["episodes"]
        assert len(summary["measured"]) >= 1
        for name, value in summary["measured"].items():
            assert own[f"{prefix}/{name}"] == value
        for k in (1, 2, 4) if summary["temperature"] else (1,):
            assert own[f"{prefix}/pass@{k}"] == summary["pass_at"][str(k)]["value"]
    assert [summary["episodes"] for summary in sets] == [9, 36]
    assert any(summary["reward"]["value"] for summary in sets), "something passes"


def test_a_line_says_what_was_read_written_and_earned(evaluate):
    lines, _ = evaluate("--data", "chats.jsonl", "--reward", "rewards.py:ones", "rewards.py:length")

    assert [line["task"] for line in lines] == ["c0", "c1", "c2"]
    for line in lines:
        (segment,) = line["segments"]
        ((start, end),) = segment["turns"]
        assert line["messages"] == [{"role": "user", "content": f"{line['task'][1:]}?"}]
        assert (line["tokens_in"], line["tokens_out"]) == (start, end - start)
        assert end == len(segment["token_ids"])
        assert line["reward"] == pytest.approx(sum(line["rewards"].values()))
        assert line["rewards"]["length"] == pytest.approx(len(line["response"]) / 10)
        assert line["end"] == ("length" if line["truncated"] else "finished")


def test_an_environment_is_played_turn_by_turn(evaluate):
    lines, (summary,) = evaluate(
        *LONG, "--env", "echo_after_hint", "--eval.max_samples", "4", "--eval.n_samples", "2"
    )

    assert [line["uid"] for line in lines] == [f"-1.{n}.{m}.0" for n in range(4) for m in range(2)]
    assert {line["turns"] for line in lines} == {2}
    assert summary["set"] == "echo_after_hint"
    assert summary["ends"] == {"finished": 8}
    for line in lines:
        (first, second) = line["segments"][0]["turns"]
        assert line["tokens_in"] == first[0] + second[0]
        assert "hint:" in line["response"]


def test_each_environment_of_several_has_numbers_of_its_own(evaluate):
    _, sets = evaluate(
        *LONG,
        "--env",
        "echo_after_hint",
        "other=echo_after_hint",
        "--eval.max_samples",
        "2",
        "--env.other.offset",
        "1",
    )

    assert [(one["set"], one["tasks"]) for one in sets] == [("echo_after_hint", 2), ("other", 2)]


AGENT = """
import json
import urllib.request


def agent(context):
    body = {"model": "policy", "messages": [{"role": "user", "content": "2+2="}]}
    request = urllib.request.Request(
        f"{context.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {context.api_key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
    return float(len(text) > 0)
"""


def test_an_agent_behind_an_endpoint_is_evaluated_on_what_it_sampled(evaluate, folder):
    (folder / "mine.py").write_text(AGENT)
    words = ["--executor", "endpoint", "--rollout.endpoint.agent", "mine.py:agent", *LONG]

    lines, (summary,) = evaluate("--data", "prompts.jsonl", "--data.max_samples", "3", *words)

    assert summary["reward"]["value"] > 0
    assert [line["turns"] for line in lines] == [1, 1, 1]
    assert all(line["segments"][0]["turns"] for line in lines)
    assert {line["end"] for line in lines} == {"finished"}


SUMS = '''
from rlhf_core.contracts import StepResult


class Sums:
    """Tasks of its own, each with a prompt and a name."""

    def tasks(self, split):
        if split != "eval":
            raise KeyError(split)
        return [{"key": f"k{n}", "prompt": f"{n}+2="} for n in range(3)]

    async def reset(self, task, seed):
        from rlhf_core.contracts import Observation

        return Observation()

    async def step(self, action):
        return StepResult(rewards={"short": 0.25, "long": 0.5}, done=True)

    async def close(self):
        pass
'''


def test_the_tasks_that_an_environment_makes_for_evaluation_are_played(evaluate, folder, capsys):
    (folder / "sums.py").write_text(SUMS)

    lines, (summary,) = evaluate("--env", "sums.py:Sums", *LONG)

    assert [(line["task"], line["prompt"]) for line in lines] == [
        ("k0", "0+2="),
        ("k1", "1+2="),
        ("k2", "2+2="),
    ]
    assert summary["reward"]["value"] == 0.75
    words = ["eval", "model", *SMALL, "--env", "sums.py:Sums", *LONG, "--output", "b"]
    assert main([*words, "--eval.environment_split", "test"]) == 2
    assert "has no split 'test', so there is nothing to evaluate on" in capsys.readouterr().err


def test_an_executor_that_returns_no_trajectories_is_named(folder, capsys):
    (folder / "mine.py").write_text(
        "class Mine:\n    async def run(self, task, samples, context):\n        return None\n"
    )
    words = ["eval", "model", *SMALL, *DATA, *LONG, "--executor", "mine.py:Mine", "--output", "b"]

    assert main(words) != 0

    problem = "--rollout.executor mine (mine.py): run() returned None (NoneType); expected a list"
    assert problem in capsys.readouterr().err


BROKEN = """
from rlhf_core.contracts import Observation, StepResult


class Moody:
    async def reset(self, task, seed):
        self.fails = task.uid.prompt == 1
        return Observation(text="config/unusable-path")

    async def step(self, action):
        if self.fails:
            raise ValueError("not today")
        return StepResult(reward=1.0, done=True)

    async def close(self):
        pass
"""


def test_an_engine_that_breaks_in_the_middle_costs_what_was_under_way_alone(
    evaluate, folder, monkeypatch
):
    whole, _ = evaluate(*DATA, output="whole")
    play = EnginePlayer.play

    async def breaking(self, job):
        if job.number == 5:
            raise RuntimeError("the device is gone")
        return await play(self, job)

    monkeypatch.setattr(EnginePlayer, "play", breaking)
    with pytest.raises(RuntimeError, match="device is gone") as caught:
        evaluate(*DATA)
    assert "the same command continues" in " ".join(caught.value.__notes__)
    assert len((folder / "out" / "episodes.jsonl").read_text().splitlines()) == 5

    monkeypatch.setattr(EnginePlayer, "play", play)
    assert evaluate(*DATA)[0] == whole


def test_an_environment_that_fails_costs_what_the_executors_policy_says(evaluate, folder, capsys):
    (folder / "moody.py").write_text(BROKEN)
    words = [*LONG, "--env", "moody.py:Moody", "--eval.max_samples", "3", "--eval.n_samples", "2"]
    assert main(["eval", "model", *SMALL, *words, "--output", "a"]) == 1
    err = capsys.readouterr().err
    assert "not today" in err
    assert "the same command continues" in err

    lines, (summary,) = evaluate(*words, "--rollout.multi_turn.on_error", "drop")

    assert [line["reward"] for line in lines] == [1.0, 1.0, None, None, 1.0, 1.0]
    assert (summary["unscored"], summary["reward"]["tasks"]) == (2, 2)
    assert summary["ends"] == {"environment_failed": 2, "finished": 4}


def test_data_sets_have_names_and_numbers_of_their_own(evaluate):
    _, sets = evaluate(
        "--data", "first=prompts.jsonl", "chats.jsonl", "--reward", "rewards.py:ones"
    )

    assert [(one["set"], one["tasks"]) for one in sets] == [("first", 9), ("chats", 3)]


def test_the_table_has_intervals_and_lines_for_tasks(evaluate, capsys):
    evaluate(*DATA, "--eval.temperatures", "1", "--eval.n_samples", "3", "--by-task")

    out = capsys.readouterr().out
    for word in ("prompts, temperature 1", "pass@1 ", "pass@2 ", "pass@3 ", "ended by", "tokens/s"):
        assert word in out
    assert len([line for line in out.splitlines() if line.startswith("prompts  1 ")]) == 9


def test_a_table_for_other_tools_is_alone_on_stdout(evaluate, capsys):
    _, sets = evaluate(*DATA, "--eval.temperatures", "1", "--eval.n_samples", "2")
    capsys.readouterr()

    evaluate(*DATA, "--eval.temperatures", "1", "--eval.n_samples", "2", "--table", "json")
    (row,) = json.loads(capsys.readouterr().out)
    evaluate(
        *DATA, "--eval.temperatures", "1", "--eval.n_samples", "2", "--table", "csv", "--by-task"
    )
    tasks = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    assert (row["set"], row["temperature"], row["tasks"]) == ("prompts", 1.0, 9)
    assert [row["pass@1"], row["pass@1_low"], row["pass@1_high"]] == [
        sets[0]["pass_at"]["1"][name] for name in ("value", "low", "high")
    ]
    assert [task["task"] for task in tasks] == [str(number) for number in range(9)]
    assert sum(int(task["passed"]) for task in tasks) == row["pass@1"] * 18


def test_a_finished_folder_gives_its_table_again_without_playing(evaluate, capsys, monkeypatch):
    evaluate(*DATA)
    first = capsys.readouterr().out.splitlines()
    monkeypatch.setattr("rlhf_plugin_inference.evaluate.run._write", None)

    evaluate(*DATA)

    assert capsys.readouterr().out.splitlines()[:-1] == first[:-1]
    assert first[-4].startswith("seconds of a task: ")


def test_another_threshold_counts_the_same_episodes_anew(evaluate):
    lines, (before,) = evaluate("--data", "prompts.jsonl", "--reward", "rewards.py:length")
    again, (after,) = evaluate(
        "--data", "prompts.jsonl", "--reward", "rewards.py:length", "--eval.pass_threshold", "0.2"
    )

    assert again == lines
    assert before["pass_at"]["1"]["value"] == 0.0
    assert after["pass_at"]["1"]["value"] == 1.0


def test_episodes_that_cannot_be_scored_are_counted(evaluate):
    lines, (summary,) = evaluate(
        "--data", "prompts.jsonl", "--reward", "rewards.py:odd", "--reward.odd.on_error", "drop"
    )

    assert [line["reward"] for line in lines] == [1.0, None] * 4 + [1.0]
    assert lines[1]["dropped"] == "odd_failed"
    assert (summary["unscored"], summary["reward"]["tasks"]) == (4, 5)
    assert summary["pass_at"]["1"]["value"] == 1.0


def test_a_peft_folder_is_evaluated_with_its_base(evaluate, write_adapter, base, folder):
    pytest.importorskip("peft")
    adapter = write_adapter(base)
    options = ["--data", "prompts.jsonl", "--reward", "rewards.py:length"]

    by_folder, _ = evaluate(*options, model=str(adapter))
    named, _ = evaluate(*options, "--model.adapter", str(adapter), output="named")
    plain, _ = evaluate(*options, output="plain")

    assert by_folder == named
    assert by_folder != plain


def test_the_folder_of_a_run_stands_for_the_model_that_it_exported(evaluate, folder, base):
    (folder / "run").mkdir()
    (folder / "run" / "model").symlink_to(base)

    assert evaluate(*DATA, model="run", output="a") == evaluate(*DATA, output="b")


def test_a_nan_reward_ends_the_evaluation_which_can_be_gone_on_with(evaluate, capsys, folder):
    words = ["eval", "model", *SMALL, "--output", "out", "--data", "prompts.jsonl"]

    assert main([*words, "--reward", "rewards.py:nan"]) == 1

    err = capsys.readouterr().err
    assert "nan" in err
    assert "the same command continues" in err


@pytest.mark.parametrize("anew", [["--overwrite"], ["--resume", "restart"]])
def test_a_command_that_begins_anew_is_not_the_one_that_goes_on(anew, capsys, folder):
    words = ["eval", "model", *SMALL, "--output", "out", "--data", "prompts.jsonl"]

    assert main([*words, "--reward", "rewards.py:nan", *anew]) == 1

    assert f"the same command without {' '.join(anew)} continues" in capsys.readouterr().err


def test_another_model_is_refused_until_the_folder_is_overwritten(evaluate, folder, base, capsys):
    evaluate(*DATA)
    (folder / "second").symlink_to(base)

    assert main(["eval", "second", *SMALL, *DATA, "--output", "out"]) == 2

    err = capsys.readouterr().err
    assert "model.path is 'second'; the results in out were made with 'model'" in err
    assert "--overwrite" in err
    evaluate(*DATA, "--overwrite", model="second")


def test_restart_begins_anew_and_keeps_what_was_there(evaluate, folder, caplog):
    first = evaluate(*DATA)
    before = {path.name: path.read_bytes() for path in (folder / "out").glob("*.*")}
    del before[".lock"]
    assert len(before) == 5

    second = evaluate(*DATA, "--seed", "1", "--resume", "restart")

    kept = folder / "out" / "earlier-1"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert "the results that were here are kept in out/earlier-1" in caplog.text
    assert second == evaluate(*DATA, "--seed", "1", output="other")
    assert evaluate(*DATA, "--resume", "restart") == first


def test_to_begin_anew_in_two_ways_is_refused(evaluate, folder, capsys):
    words = ["eval", "model", *SMALL, *DATA, "--output", "out"]

    assert main([*words, "--overwrite", "--resume", "restart"]) == 2

    assert "one removes earlier results, the other keeps them" in capsys.readouterr().err


def test_a_model_whose_files_have_changed_is_another_one(evaluate, folder, base, capsys):
    """A run that is trained again exports to the same folder, and its old results have to stay its own."""
    (folder / "model").unlink()
    shutil.copytree(base, folder / "model")
    evaluate(*DATA)
    os.utime(folder / "model" / "model.safetensors", ns=(1, 1))

    assert main(["eval", "model", *SMALL, *DATA, "--output", "out"]) == 2

    assert "model model: its files have changed since the results in out" in capsys.readouterr().err
    evaluate(*DATA, "--overwrite")


def test_changed_data_are_refused(evaluate, folder, capsys):
    evaluate(*DATA)
    rows = (folder / "prompts.jsonl").read_text()
    (folder / "prompts.jsonl").write_text(rows.replace("3+1", "3+2"))

    assert main(["eval", "model", *SMALL, *DATA, "--output", "out"]) == 2

    assert "episodes.jsonl:4: its task is not the one at this place" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected", "error_code"),
    [
        ([], "expected a model; got none", "config/no-model"),
        (["model"], "expected tasks; got none", "config/no-tasks"),
        (
            ["model", "--data", "prompts.jsonl"],
            "expected something that scores answers",
            "config/no-reward",
        ),
        (["nothere/at/all", *DATA], "there is no such folder", "config/unusable-path"),
        (["rewards.py", *DATA], "this is a file", "config/unusable-path"),
        (
            ["model", "--data", "empty.jsonl", "--reward", "rewards.py:ones"],
            "the file is empty",
            "config/unusable-path",
        ),
        (
            ["model", *DATA, "--eval.temperatures", "1", "1"],
            "the same temperature is given twice",
            "config/temperature-twice",
        ),
        (
            ["model", *DATA, "--eval.temperatures", "11"],
            "expected 0 (greedy) to 10, got 11",
            "config/out-of-range",
        ),
        (
            ["model", *DATA, "--eval.n_samples", "2"],
            "at temperature 0 all episodes of a task",
            "config/equal-samples",
        ),
        (
            ["model", *DATA, "--eval.max_samples", "2"],
            "eval.max_samples would change nothing",
            "config/no-effect",
        ),
        (
            ["model", *DATA, "--remote.retries", "2"],
            "remote.retries would change nothing",
            "config/no-effect",
        ),
        (
            ["model", *DATA, "--executor", "multi_turn"],
            "needs 'environment': choose one with --env",
            "config/missing-capability",
        ),
        (
            ["model", "--env", "echo_after_hint", *LONG, "--data.split", "x"],
            "data.split would change nothing",
            "config/no-effect",
        ),
        (
            ["model", "--env", "echo_after_hint"],
            "--rollout.max_length is required",
            "config/no-max-length",
        ),
        (
            ["model", *DATA, "--url", "http://localhost:1/v1"],
            "both say who answers",
            "config/model-and-server",
        ),
        (
            ["--url", "localhost", "--model-name", "m", *DATA],
            "expected an address such as",
            "remote/malformed-address",
        ),
        (
            ["--url", "http://a:b@c/v1", "--model-name", "m", *DATA],
            "without a name or password",
            "remote/password-in-address",
        ),
        (["--url", "http://localhost:1/v1", *DATA], "Add --remote.model NAME", "remote/no-model"),
        (
            ["--url", "http://localhost:1/v1", "--model-name", "m", *DATA, "--engine", "vllm"],
            "engine",
            "config/no-effect",
        ),
        (
            ["--url", "http://localhost:1/v1", "--model-name", "m", *DATA],
            "none answers there",
            "remote/unreachable",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    folder, capsys, words, expected, error_code
):
    (folder / "empty.jsonl").write_text("")

    assert main(["--errors", "json", "eval", *words]) == 2

    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert expected in error["message"]
    assert error["code"] == error_code


def test_a_dry_run_describes_and_loads_nothing(folder, capsys):
    assert (
        main(
            [
                "eval",
                "model",
                "--dry-run",
                *DATA,
                "--eval.n_samples",
                "3",
                "--eval.temperatures",
                "1",
            ]
        )
        == 0
    )

    out = capsys.readouterr().out
    assert "3 episodes at temperature 1" in out
    assert not (folder / "runs").exists()


def test_help_imports_no_torch():
    code = (
        "import sys; from rlhf_plugin_inference.evaluate.command import evaluate; evaluate(['--help']); "
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "rlhf eval MODEL" in done.stdout
    assert done.stderr.strip().endswith("[]")
