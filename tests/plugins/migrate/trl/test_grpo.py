"""A YAML file of TRL for GRPO becomes a configuration that ``rlhf train`` takes."""

import importlib.util
import sys

import pytest

from rlhf_cli.main import main
from rlhf_plugin_migrate.table.outcome import Status
from rlhf_plugin_migrate.trl.grpo import migrate
from rlhf_plugin_migrate.trl.scripts import SCRIPTS

FILE = """
model_name_or_path: {model}
dtype: bfloat16
dataset_name: rows.jsonl
reward_funcs: [accuracy_reward, think_format_reward, my_rewards.short]
reward_weights: [1.0, 0.2, 0.1]
learning_rate: 2e-6
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
steps_per_generation: 8
num_generations: 8
max_completion_length: 1024
use_vllm: true
vllm_gpu_memory_utilization: 0.3
beta: 0.04
lr_scheduler_type: cosine
warmup_ratio: 0.1
max_steps: 200
save_steps: 50
logging_steps: 1
report_to: [wandb, tensorboard]
output_dir: runs/grpo
epsilon_high: 0.28
"""


@pytest.fixture
def grpo():
    """Settings and rows of a text."""

    def call(text, processes=1):
        out = migrate(SCRIPTS["grpo"].read(text, "x.yaml"), processes, "r.py")
        settings = {path: setting.value for path, setting in out.settings.items()}
        return settings, {row.what: row for row in out.rows()}

    return call


@pytest.fixture
def written(run, workspace, tmp_path):
    (tmp_path / "grpo.yaml").write_text(FILE.format(model=workspace["MODEL"]))
    return run("grpo.yaml", "--from", "trl", "--processes", "4")


def test_a_penalty_of_length_is_left_out_where_each_reward_is_normalized_by_itself(grpo):
    text = "reward_funcs: [accuracy_reward, get_soft_overlong_punishment]\n"

    summed, _ = grpo(text)
    apart, rows = grpo(f"{text}multi_objective_aggregation: normalize_then_sum\n")

    assert summed["reward.shapers"] == ["overlong"]
    assert apart["algo.advantage.estimator"] == "gdpo"
    assert not [path for path in apart if path.startswith(("reward.shapers", "reward.overlong"))]
    (row,) = (row for what, row in rows.items() if what.startswith("reward_funcs"))
    assert row.status is Status.MISSING
    assert "gdpo does not read what shapers change" in row.text


def test_the_smoothing_of_supervised_losses_which_trl_does_not_read_here_is_dropped(grpo):
    """TRL's trainers for GRPO compute their loss without the label smoother of Transformers."""
    plain, _ = grpo("beta: 0.1")
    smoothed, rows = grpo("beta: 0.1\nlabel_smoothing_factor: 0.1")

    assert smoothed == plain
    assert rows["label_smoothing_factor: 0.1"].status is Status.NOTHING


def test_rlhf_train_accepts_the_result(written, capsys):
    assert written.code == 0, written.report
    assert main(["train", "-c", "run.toml", "--check"]) == 0, capsys.readouterr().err
    assert main(["train", "-c", "run.toml", "--dry-run"]) == 0, capsys.readouterr().err


def test_batches_are_those_of_all_processes(written):
    config = written.config

    # 8 a device x 4 processes x 8 steps a generation = 256 completions, in groups of 8; an update has 8 x 4 x 4.
    assert config["rollout"]["batch_size"] == 32
    assert config["train"]["batch_size"] == 128
    # TRL counts updates, of which a generation has two.
    assert config["train"]["steps"] == 100
    assert config["checkpoint"]["every"] == 25
    assert config["runtime"]["ray"] == {"engines": 4, "ranks": {"policy": 4, "reference": 4}}


def test_the_algorithm_is_trls(written):
    algo = written.config["algo"]

    assert algo["loss"]["aggregation"] == "token-mean"
    assert algo["loss"]["ppo"] == {"clip_high": 0.28}
    assert algo["kl"] == {
        "coef": 0.04,
        "mode": "loss",
        "estimator": "k3",
        "unbiased_gradient": True,
    }
    assert algo["correction"] == {"kind": "mis", "mis": {"high": 3.0}}
    assert algo["advantage"]["estimator"] == "group_norm"
    assert written.config["actor"]["adam"] == {"lr": 2e-6, "betas": [0.9, 0.999]}
    assert written.config["actor"]["min_lr_ratio"] == 0.0


def test_rewards_have_counterparts_and_weights(written):
    reward = written.config["reward"]

    assert reward["use"] == ["math", "regex", "run_reward.py:short"]
    assert (reward["regex"]["weight"], reward["short"]["weight"]) == (0.2, 0.1)
    assert written.config["log"]["to"] == ["wandb"]


@pytest.mark.parametrize("chat", [True, False])
def test_the_written_function_calls_the_users_as_trl_does(written, tmp_path, monkeypatch, chat):
    text = "completion[0]['content']" if chat else "completion"
    (tmp_path / "my_rewards.py").write_text(
        "def short(prompts, completions, answer, **kwargs):\n"
        f"    return [None if right == 'x' else len({text}) for completion, right in zip(completions, answer)]\n"
    )
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("run_reward", tmp_path / "run_reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prompt = [{"role": "user", "content": "q"}] if chat else "q"
    rows = [{"prompt": prompt, "answer": "2"}, {"prompt": prompt, "answer": "x"}]

    assert module.short(["q", "q"], ["four", "b"], rows) == [4.0, 0.0]


def test_the_format_of_thoughts_is_that_of_trl(grpo):
    import regex

    pattern = grpo("reward_funcs: [think_format_reward]")[0]["reward.regex.pattern"]

    assert regex.fullmatch(pattern, "<think>\nyes\n</think>\nanswer")
    for text in ("answer", "<think>a<think>b</think>c", "x<think>a</think>b"):
        assert not regex.fullmatch(pattern, text)


@pytest.mark.parametrize(
    ("kind", "level", "policy", "aggregation"),
    [
        ("dapo", "token", "ppo", "token-mean"),
        ("grpo", "token", "ppo", "seq-mean-token-mean"),
        ("dr_grpo", "token", "ppo", "seq-mean-token-sum-norm"),
        ("grpo", "sequence", "gspo", "seq-mean-token-mean"),
        ("cispo", "token", "cispo", "token-mean"),
        ("sapo", "token", "sapo", "seq-mean-token-mean"),
    ],
)
def test_loss_types(grpo, kind, level, policy, aggregation):
    settings, _ = grpo(f"loss_type: {kind}\nimportance_sampling_level: {level}\nepsilon_high: 3.0")

    assert settings["algo.loss.policy"] == policy
    assert settings["algo.loss.aggregation"] == aggregation
    if kind == "cispo":
        assert settings["algo.loss.cispo.clip_high"] == 2.0


@pytest.mark.parametrize(
    ("mode", "kind", "level"),
    [
        ("token_truncate", "tis", None),
        ("sequence_mask", "mis", None),
        ("token_mask", "importance", "token"),
        ("sequence_truncate", "importance", "sequence"),
    ],
)
def test_corrections(grpo, mode, kind, level):
    settings, _ = grpo(f"use_vllm: true\nvllm_importance_sampling_mode: {mode}")

    assert settings["algo.correction.kind"] == kind
    assert settings.get("algo.correction.importance.level") == level


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("adamw_torch", "adam"),
        ("paged_adamw_8bit", "adam8bit"),
        ("sgd", "sgd"),
        ("lion_8bit", None),
    ],
)
def test_optimizers(grpo, name, ours):
    settings, rows = grpo(f"optim: {name}\nlearning_rate: 1e-5")

    assert settings["actor.optim"] == (ours or "adam")
    assert settings[f"actor.{ours or 'adam'}.lr"] == 1e-5
    assert (rows[f"optim: {name}"].status is Status.MISSING) is (ours is None)
    assert settings.get("actor.adam8bit.paged", False) is name.startswith("paged_")


@pytest.mark.parametrize(
    ("text", "every"), [("eval_steps: 40", 40), ("logging_steps: 5", 5), ("", 10)]
)
def test_evaluations_are_as_often_as_those_of_the_trainer(grpo, text, every):
    settings, _ = grpo(f"dataset_name: a\neval_strategy: steps\n{text}")

    assert settings["eval.every"] == every


def test_one_process_without_vllm_is_local(grpo):
    settings, _ = grpo("num_generations: 4")

    assert settings["backend.name"] == "torch"
    assert settings["engine.name"] == "embedded"
    assert "algo.correction.kind" not in settings


@pytest.mark.parametrize(
    ("value", "name"),
    [("group", "group_norm"), ("true", "group_norm"), ("false", "dr_grpo"), ("none", "dr_grpo")],
)
def test_scales_of_rewards(grpo, value, name):
    assert grpo(f"scale_rewards: {value}")[0]["algo.advantage.estimator"] == name


def test_tokens_that_the_loss_leaves_out_are_left_out(grpo):
    settings, rows = grpo("top_entropy_quantile: 0.2\noff_policy_mask_threshold: 0.5")

    assert settings["algo.loss.top_entropy"] == 0.2
    assert settings["algo.loss.off_policy_mask"] == 0.5
    assert "over the whole update" in rows["top_entropy_quantile: 0.2"].text
    assert "algo.loss.top_entropy" not in grpo("seed: 1")[0]


def test_numbers_that_yaml_reads_as_text_are_numbers(grpo):
    assert grpo("learning_rate: 1e-6")[0]["actor.adam.lr"] == 1e-6


def test_unknown_keys_and_values_are_reported(grpo):
    _, rows = grpo("num_generation: 8\nbeta: much\nuse_vllm: 'yes'")

    assert "Did you mean num_generations?" in rows["num_generation: 8"].text
    assert rows["beta: much"].status is rows["use_vllm: yes"].status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dtype: bfloat16\nseed: 1", "say which one it is for: --script grpo or --script sft"),
        ("a: [", "not valid YAML"),
        ("- a", "expected keys with values"),
    ],
)
def test_other_files_are_refused(run, workspace, tmp_path, text, expected):
    (tmp_path / "x.yaml").write_text(text)

    migrated = run("x.yaml", "--from", "trl")

    assert migrated.code == 2
    assert expected in migrated.report


BRIEF = """
model_name_or_path: m
dataset_name: rows.jsonl
reward_funcs: [my_rewards.short]
max_steps: 220
warmup_steps: 20
"""


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        # 50 of the 200 updates after the warm-up.
        (
            "{num_decay_steps: 50, decay_type: linear, min_lr_ratio: 0.05}",
            {"wsd.form": "linear", "wsd.decay_share": 0.25, "min_lr_ratio": 0.05},
        ),
        (
            "{num_decay_steps: 100, decay_type: 1-sqrt}",
            {"wsd.form": "sqrt", "wsd.decay_share": 0.5, "min_lr_ratio": 0.0},
        ),
        ("{num_decay_steps: 100}", {"wsd.form": "linear", "wsd.decay_share": 0.5}),
    ],
)
def test_warm_up_stable_decay_is_wsd(grpo, keys, expected):
    text = f"{BRIEF}lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {keys}\n"

    settings, rows = grpo(text)

    assert settings["actor.lr_schedule"] == "wsd"
    for option, value in expected.items():
        assert settings[f"actor.{option}"] == value
    said = " ".join(row.text for row in rows.values())
    assert ("form cosine" in said) == ("decay_type" not in keys)


@pytest.mark.parametrize(
    ("more", "timescale"),
    [
        ("", None),
        ("lr_scheduler_kwargs: {timescale: 300}\n", 300),
        ("warmup_steps: 0\n", 10_000),
    ],
)
def test_the_inverse_root_keeps_its_timescale(grpo, more, timescale):
    brief = BRIEF.replace("warmup_steps: 20\n", "") if "warmup" in more else BRIEF

    settings, _ = grpo(f"{brief}lr_scheduler_type: inverse_sqrt\n{more}")

    assert settings["actor.lr_schedule"] == "inverse_sqrt"
    assert settings.get("actor.inverse_sqrt.timescale") == timescale
    assert "actor.min_lr_ratio" not in settings


def test_an_engine_on_the_trainers_gpu_sleeps_if_it_did(grpo):
    settings, rows = grpo("use_vllm: true\nvllm_enable_sleep_mode: true")

    assert settings["runtime.sleep"] == "always"
    assert rows["vllm_enable_sleep_mode: True"].status is Status.DIFFERS


def test_an_engine_that_was_told_not_to_sleep_does_not(grpo):
    settings, rows = grpo("use_vllm: true\nvllm_enable_sleep_mode: false")

    assert settings["runtime.sleep"] == "never"
    assert rows["vllm_enable_sleep_mode: False"].status is Status.MAPPED


def test_an_engine_of_its_own_does_not_sleep(grpo):
    settings, rows = grpo("use_vllm: true\nvllm_mode: server\nvllm_enable_sleep_mode: true")

    assert "runtime.sleep" not in settings
    assert rows["vllm_enable_sleep_mode: True"].status is Status.NOTHING


SYNCED = (
    "beta: 0.1\nsync_ref_model: true\nref_model_sync_steps: 64\nper_device_train_batch_size: 8\n"
)


def test_a_reference_that_follows_moves_after_as_many_updates(grpo):
    settings, rows = grpo(SYNCED + "num_iterations: 4\n", processes=2)

    assert (settings["ref.sync_every"], settings["ref.sync_alpha"]) == (16, 0.6)
    assert "runtime.ray.ranks.reference" not in settings
    assert rows["ref_model_sync_steps: 64"].status is Status.MAPPED


def test_a_reference_that_follows_between_two_steps_is_said_to_differ(grpo):
    settings, rows = grpo(SYNCED + "num_iterations: 3\n")

    assert settings["ref.sync_every"] == 21
    assert rows["ref_model_sync_steps: 64"].status is Status.DIFFERS


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("beta: 0.0\nsync_ref_model: true\n", Status.NOTHING),
        ("beta: 0.1\nsync_ref_model: false\n", Status.NOTHING),
        ("beta: 0.1\nsync_ref_model: true\nuse_peft: true\n", Status.MISSING),
    ],
)
def test_no_reference_follows_where_there_is_none_or_adapters_would_be_mixed(grpo, text, status):
    settings, rows = grpo(text)

    assert not any(path.startswith("ref.") for path in settings)
    (row,) = (row for what, row in rows.items() if what.startswith("sync_ref_model"))
    assert row.status is status
