"""Scripts of SkyRL's examples, with the options of the real files, for ``rlhf train``."""

import asyncio
import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_core.contracts import Action, Stop, Task, Uid

COMMANDS = Path(__file__).parent / "commands"


@pytest.fixture
def rows(workspace, tmp_path, tiny_model):
    """Two files of rows as SkyRL's, of which the second is held out."""
    for name, start in (("train", 0), ("test", 100)):
        made = [
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": f"{n} + 1?"}],
                "env_class": "gsm8k",
                "reward_spec": {"method": "rule", "ground_truth": str(n + 1)},
                "reward_model": {"method": "rule", "ground_truth": str(n + 1)},
                "extra_info": {"question": f"{n} + 1?", "answer": str(n + 1)},
            }
            for n in range(start, start + 20)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return ["--model", str(tiny_model), "--data", "train.jsonl", "--eval.data", "held=test.jsonl"]


@pytest.fixture
def skyrl(run, workspace):
    """Migrate one of the scripts."""

    def call(name, *flags):
        return run(COMMANDS / f"{name}.sh", "--set", "HOME=/home/me", *flags)

    return call


@pytest.mark.parametrize("name", sorted(path.stem for path in COMMANDS.glob("*.sh")))
def test_rlhf_train_accepts_the_result(skyrl, rows, name, capsys):
    migrated = skyrl(name)
    words = ["train", "-c", "run.toml", *rows]
    if "path" in migrated.config.get("critic", {}):
        words += ["--critic.path", rows[1]]

    assert migrated.code == 0, migrated.report
    assert main([*words, "--dry-run"]) == 0, capsys.readouterr().err


def test_grpo_counts_prompts_in_both_batches(skyrl):
    config = skyrl("gsm8k").config

    # 1024 prompts of 5 samples; updates of 256 prompts, which are 1280 sequences.
    assert config["rollout"]["batch_size"] == 1024
    assert config["train"]["batch_size"] == 256 * 5
    # 64 sequences of at most 512 + 1024 tokens.
    assert config["train"]["max_tokens_per_micro_batch"] == 64 * 1536
    assert config["runtime"] == {"name": "ray", "ray": {"gpus": 4}}
    assert config["algo"]["kl"] == {"mode": "loss", "coef": 0.001, "estimator": "k3"}
    assert config["data"]["train"] == ["/home/me/data/gsm8k/train.parquet"]
    assert config["reward"] == {"use": ["math"], "math": {"label_key": "reward_spec.ground_truth"}}
    assert config["log"]["wandb"] == {"project": "gsm8k", "name": "gsm8k_test"}


def test_dapo(skyrl):
    migrated = skyrl("dapo")
    config = migrated.config

    # 512 prompts of 16 samples; updates of 32 prompts.
    assert (config["rollout"]["batch_size"], config["train"]["batch_size"]) == (512, 32 * 16)
    assert config["algo"]["loss"]["ppo"] == {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0}
    assert config["reward"]["overlong"] == {"buffer": 4096, "factor": 1.0, "max_tokens": 8192}
    # Answers of evaluations are as long as those of training, from a nucleus of their own.
    assert config["eval"]["top_p"] == 0.7
    assert not {"top_k", "min_p", "max_new_tokens", "max_length"} & config["eval"].keys()
    assert config["algo"]["kl"] == {"coef": 0.0}
    assert "is not read: what it registers or replaces" in migrated.report


def test_generation_one_step_ahead_has_engines_of_its_own(skyrl):
    config = skyrl("one_step_off").config

    assert config["rollout"]["max_staleness"] == 1
    assert config["runtime"]["ray"] == {
        "ranks": {"policy": 4, "reference": 4},
        "engines": 4,
        "colocate": ["policy+reference"],
    }


def test_a_critic_has_its_own_optimizer(skyrl):
    config = skyrl("ppo").config

    assert config["algo"]["advantage"]["estimator"] == "gae"
    assert config["critic"]["adam"]["lr"] == 5e-6


def test_an_estimator_without_a_critic_sets_none(skyrl):
    assert "critic" not in skyrl("gsm8k").config


def test_tools_of_an_environment_are_its_own(skyrl):
    config = skyrl("search").config

    assert config["env"]["use"] == ["run_env.py:SkyRLEnvironment"]
    assert config["rollout"]["multi_turn"] == {"max_turns": 4}
    assert config["rollout"]["stop"] == ["</search>", "</answer>"]


def test_names_of_project_and_run_reach_a_logger_other_than_wandb(run, workspace):
    words = ("trainer.logger=mlflow", "trainer.project_name=p", "trainer.run_name=r")

    migrated = run("--", "python", "-m", "skyrl.train.entrypoints.main_base", *words)

    assert migrated.config["log"] == {
        "to": ["mlflow"],
        "mlflow": {"experiment_name": "p", "run_name": "r"},
    }


def test_a_file_that_is_both_trained_on_and_held_out_is_noted(run, workspace):
    words = ("data.train_data=['a.parquet']", "data.val_data=['a.parquet']")

    migrated = run("--", "python", "-m", "skyrl.train.entrypoints.main_base", *words)

    assert "a.parquet is both" in migrated.report


@pytest.mark.parametrize(
    ("program", "instead"),
    [("skyrl.train.main_sft", "rlhf sft"), ("skyrl.train.entrypoints.main_generate", "rlhf eval")],
)
def test_other_programs_are_refused_with_the_command_that_does_the_same(run, program, instead):
    migrated = run("--", "uv", "run", "-m", program, "trainer.seed=1")

    assert migrated.code == 2
    assert f"{program}: expected a program of SkyRL that trains" in migrated.report
    assert instead in migrated.report


class Multiply:
    """An environment as SkyRL's users write them, without its base class."""

    def __init__(self, env_config, extras):
        self.truth, self.max_turns, self.turns = (
            extras["reward_spec"]["ground_truth"],
            extras["max_turns"],
            0,
        )

    def init(self, prompt):
        return prompt, {}

    def step(self, action):
        self.turns += 1
        is_right = action == self.truth
        if is_right or self.turns == self.max_turns:
            return {
                "observations": [],
                "reward": float(is_right),
                "done": True,
                "metadata": {"a": "b"},
            }
        again = [{"role": "user", "content": "again"}]
        return {
            "observations": again,
            "reward": 0.0,
            "done": False,
            "metadata": {"right": is_right},
        }

    def close(self):
        pass


def test_the_written_environment_plays_as_skyrl_does(skyrl, tmp_path, monkeypatch):
    assert skyrl("multiply", "--strict").code == 0
    gym = types.ModuleType("skyrl_gym")
    gym.make = lambda name, **arguments: {"multiply": Multiply}[name](**arguments)
    monkeypatch.setitem(sys.modules, "skyrl_gym", gym)
    spec = importlib.util.spec_from_file_location("written_env", tmp_path / "run_env.py")
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    monkeypatch.setattr(written, "MAX_TURNS", 2)
    prompt = [{"role": "user", "content": "2*2?"}]
    task = Task(uid=Uid(0, 0), row={"prompt": prompt, "reward_spec": {"ground_truth": "4"}})

    async def play():
        env = written.SkyRLEnvironment(None)
        first = await env.reset(task, 0)
        turns = [
            await env.step(Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn))
            for turn, text in enumerate(("3", "4"))
        ]
        await env.close()
        return first, turns

    first, (again, last) = asyncio.run(play())

    assert list(first.messages) == prompt
    assert (again.reward, again.done, again.metrics) == (0.0, False, {"right": 0.0})
    assert again.observation.messages[0]["content"] == "again"
    assert (last.reward, last.done, last.metrics) == (1.0, True, {})


def test_longer_answers_of_evaluations_have_room(run, workspace, tmp_path):
    text = (COMMANDS / "search.sh").read_text()
    short = "eval_sampling_params.max_generate_length=500"
    assert short in text
    (tmp_path / "long.sh").write_text(text.replace(short, f"{short}0"))

    config = run(tmp_path / "long.sh", "--set", "HOME=/home/me").config

    longest = config["rollout"]["max_length"]
    assert config["rollout"]["max_new_tokens"] == 500
    assert config["eval"]["max_new_tokens"] == 5000
    assert config["eval"]["max_length"] == longest - 500 + 5000
