"""The command as it is typed: what it predicts, what it exits with, and what it refuses."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from tests.deadlines import HANG_S

from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_plugin_plan.command import main as plan
from rlhf_plugin_plan.run_prediction import replaced
from rlhf_testing.errors import has_code

CLUSTER = [
    *("--runtime", "ray", "--backend", "deepspeed"),
    *("--runtime.ray.ranks.policy", "8", "--runtime.ray.engines", "8"),
]


def peak(result):
    return max(gpu["peak_gib"] for gpu in result["gpus"])


def test_a_run_that_fits_exits_with_0_and_says_what_it_takes(run):
    code, result = run()

    assert (code, result["fits"], result["num_gpus"]) == (0, True, 1)
    assert result["parameters"] == {"policy": 1_543_714_304}
    (gpu,) = result["gpus"]
    assert [process["name"] for process in gpu["processes"]] == ["policy", "engine"]
    assert gpu["peak_gib"] == pytest.approx(
        sum(sum(process["parts_gib"].values()) for process in gpu["processes"])
    )
    trainer = gpu["processes"][0]
    assert trainer["roles"]["policy"]["resident_gib"] == pytest.approx(14 * 1_543_714_304 / 2**30)
    assert trainer["torch_peak_gib"] < trainer["peak_gib"]
    assert gpu["processes"][1]["torch_peak_gib"] == 0


def test_the_phases_of_a_step_are_all_there(run):
    _, result = run("--prompt-tokens", "256", "--response-tokens", "1024")

    phases = {phase["name"]: phase for phase in result["phases"]}
    names = ["prefill", "decode", "train policy", "optimizer policy", "weight sync"]
    assert list(phases) == names
    # 1023 steps of 256 sequences: 2.37 s at the limit.
    assert phases["decode"]["limit_s"] == pytest.approx(2.366, abs=1e-3)
    assert phases["decode"]["measured_s"] > phases["decode"]["limit_s"]
    assert phases["optimizer policy"]["measured_s"] is None
    assert result["step_s"]["limit"] == pytest.approx(sum(p["limit_s"] for p in phases.values()))
    assert result["tokens_per_step"] == 256 * 1280


def test_passes_appear_with_what_needs_them(run):
    _, plain = run()
    _, kl = run("--algo.kl.coef", "0.01")
    _, critic = run("--estimator", "gae")

    def names(result):
        return {phase["name"] for phase in result["phases"]} - {
            phase["name"] for phase in plain["phases"]
        }

    assert names(kl) == {"old log-probs", "reference log-probs"}
    assert {"values", "train critic", "optimizer critic"} <= names(critic)
    assert "reference" in kl["gpus"][0]["processes"][0]["roles"]
    assert peak(critic) > peak(kl) > peak(plain)


def test_a_run_that_does_not_fit_exits_with_1_and_the_remedies_are_true(run):
    code, result = run("--gpu", "l40s", "--train.max_tokens_per_micro_batch", "32768")

    assert (code, result["fits"]) == (1, False)
    assert "l40s has 44.4" in result["problems"][0]
    enough = [remedy for remedy in result["remedies"] if remedy["fits"]]
    assert enough
    for remedy in enough:
        code, _ = run(
            "--gpu",
            "l40s",
            *replaced(["--train.max_tokens_per_micro_batch", "32768"], remedy["flags"]),
        )
        assert code == 0, remedy


@pytest.mark.slow
def test_a_remedy_that_is_not_enough_gains_what_it_says(run):
    flags = ["--gpu", "l40s", "--train.max_tokens_per_micro_batch", "32768"]
    _, before = run(*flags)
    less = next(remedy for remedy in before["remedies"] if not remedy["fits"])

    _, after = run(*replaced(flags, less["flags"]))

    assert peak(before) - peak(after) == pytest.approx(less["gain_gib"])


def test_a_cache_without_room_for_a_sequence_does_not_fit(run):
    code, result = run("--engine.vllm.kv_cache_gib", "0.01")

    assert code == 1
    assert "room for 374 tokens" in result["problems"][0]
    assert result["phases"] == []


def test_the_engine_needs_room_for_longer_answers_of_evaluations(run):
    cache = ("--engine.vllm.kv_cache_gib", "0.1")
    fits, _ = run(*cache)

    code, result = run(*cache, "--eval.fraction", "0.1", "--eval.max_new_tokens", "8192")

    assert (fits, code) == (0, 1)
    assert "a sequence of this run may have 8448" in result["problems"][0]


def test_ranks_share_and_a_stage_shares_more(run):
    _, two = run(*CLUSTER)
    _, three = run(*CLUSTER, "--backend.deepspeed.zero_stage", "3")

    assert two["num_gpus"] == three["num_gpus"] == 8
    roles = [result["gpus"][0]["processes"][0]["roles"]["policy"] for result in (two, three)]
    assert roles[1]["resident_gib"] < roles[0]["resident_gib"]


def test_what_is_apart_stands_on_gpus_of_its_own(run):
    _, together = run(*CLUSTER)
    _, uneven = run(*CLUSTER[:-1], "2")
    _, apart = run(*CLUSTER, "--runtime.ray.colocate", "engine")

    assert [(gpu["name"], gpu["count"]) for gpu in together["gpus"]] == [("policy + engine", 8)]
    assert together["step_s"]["overlaps"] is False
    assert [(gpu["name"], gpu["count"]) for gpu in uneven["gpus"]] == [
        ("policy + engine", 2),
        ("policy", 6),
    ]
    assert [(gpu["name"], gpu["count"]) for gpu in apart["gpus"]] == [("engine", 8), ("policy", 8)]
    assert peak(apart) < peak(together)


def test_generation_and_training_overlap_where_they_are_apart(run):
    flags = [*CLUSTER, "--rollout.max_staleness", "1", "--algo.correction.kind", "tis"]
    _, together = run(*flags)
    _, apart = run(*flags, "--runtime.ray.colocate", "policy", "engine")

    assert [(gpu["name"], gpu["count"]) for gpu in apart["gpus"]] == [("policy", 8), ("engine", 8)]
    assert together["step_s"]["overlaps"] is False
    assert apart["step_s"]["overlaps"] is True
    assert apart["step_s"]["limit"] < together["step_s"]["limit"]


def test_sequence_parallelism_lets_ranks_share_a_sequence(run):
    """2 sequences on 8 ranks: 4 ranks hold a quarter of one each."""
    flags = [*CLUSTER, "--rollout.batch_size", "1", "--rollout.n_samples_per_prompt", "2"]
    with pytest.raises(ConfigError, match="2 sequences", check=has_code("plan/empty-ranks")):
        run(*flags)

    _, sliced = run(*flags, "--backend.deepspeed.sequence_parallel", "4")

    parts = sliced["gpus"][0]["processes"][0]["parts_gib"]
    of_a_token = 28 * (16 * 1536 + 4 * (1536 + 256) + 8 * 8960 + 4 * 12 + 8)
    kept = next(size for name, size in parts.items() if name.endswith(": activations"))
    assert kept == pytest.approx(320 * of_a_token / 2**30)


@pytest.mark.parametrize(
    ("flags", "message", "code"),
    [
        (["--gpu", "abacus"], "--gpu abacus: expected one of h200", "plan/unknown-gpu"),
        (["--nodes", "0"], "--nodes 0", "usage/not-positive"),
        (["--prompt-tokens", "-3"], "--prompt-tokens", "usage/not-positive"),
        (
            ["--response-tokens", "9999"],
            "exceed the longest sequence of the run, 1280",
            "plan/too-long",
        ),
        (
            ["--model-config", "critic=x.json"],
            "this run has no role 'critic'",
            "usage/unknown-role",
        ),
        ([*CLUSTER, "--gpus-per-node", "4"], "takes 8 GPUs .* give 1 x 4", "plan/number-of-gpus"),
        (
            [*CLUSTER, "--rollout.batch_size", "1", "--rollout.n_samples_per_prompt", "4"],
            "has 4 sequences",
            "plan/empty-ranks",
        ),
        (
            ["--runtime", "ray", "--runtime.ray.ranks.policy", "2"],
            "trains in one process only",
            "ranks/one-process",
        ),
        ([*CLUSTER, "--runtime.ray.gpus_per.engine", "2"], "ask for", "ray/unequal-shares"),
        (
            [*CLUSTER, "--backend.deepspeed.sequence_parallel", "5"],
            "5, which does not divide the 8 ranks",
            "plan/does-not-divide",
        ),
        (
            ["--train.max_tokens_per_micro_batchs", "3"],
            "max_tokens_per_micro_batch",
            "config/unknown-option",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(run, flags, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        run(*flags)


@pytest.mark.parametrize(
    ("tensor", "message", "code"),
    [
        (
            "5",
            "does not divide the model's 12 attention heads. Expected one of 1, 2, 3, 4, 6, 12",
            "plan/heads",
        ),
        ("x", "'x'", "plan/engine-argument"),
    ],
)
def test_tensor_parallelism_has_to_divide_the_heads(run, tmp_path, tensor, message, code):
    more = tmp_path / "more.toml"
    value = tensor if tensor.isdigit() else f'"{tensor}"'
    more.write_text(f"[engine.vllm.args]\ntensor_parallel_size = {value}\n")

    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        run("-c", str(more))


def test_an_engine_of_several_gpus_has_to_be_placed_alone_and_whole(run, tmp_path):
    more = tmp_path / "more.toml"
    more.write_text("[engine.vllm.args]\ntensor_parallel_size = 4\n")
    alone = ["-c", str(more), *CLUSTER, "--runtime.ray.colocate", "policy", "engine"]

    with pytest.raises(ConfigError, match="policy", check=has_code("plan/large-engine")):
        run("-c", str(more), *CLUSTER)
    with pytest.raises(
        ConfigError,
        match=r"--runtime\.ray\.gpus_per\.engine 4",
        check=has_code("plan/gpus-per-process"),
    ):
        run(*alone)
    with pytest.raises(ConfigError, match="6 GPUs", check=has_code("plan/idle-gpus")):
        run(*alone, "--runtime.ray.gpus_per.engine", "4", "--nodes", "9", "--gpus-per-node", "6")
    code, result = run(*alone, "--runtime.ray.gpus_per.engine", "4", "--nodes", "5")
    assert (code, result["num_gpus"]) == (0, 8 + 8 * 4)


def test_what_is_not_modeled_is_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("class MyEngine:\n    pass\n\n\nclass MyOptim:\n    pass\n")

    code, result = run("--engine", "mine.py:MyEngine", "--optim", "mine.py:MyOptim")

    assert code == 0
    assert any("mine" in note and "not modeled" in note for note in result["notes"])
    assert sum("not modeled" in note for note in result["notes"]) == 2
    assert [process["name"] for process in result["gpus"][0]["processes"]] == ["policy"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('[backend.torch]\ndevice = "cpu"', "planned as if the trainer were on a GPU"),
        ("[engine.vllm.args]\ncpu_offload_gb = 2", "engine.vllm.args: cpu_offload_gb not modeled"),
        ('[rollout]\nfilters = ["dynamic_sampling"]', "prompts that replace filtered ones"),
        (
            '[reward]\nuse = ["reward_model"]\n[reward.reward_model]\npath = "x"\ntimeout_s = 9.0\n'
            "batch_tokens = 4096",
            "the model of reward.reward_model is not modeled: .* passes of 4,096 tokens",
        ),
        (
            '[runtime]\nname = "ray"\n[backend]\nname = "deepspeed"\n[backend.deepspeed]\nzero_stage = 3\n'
            "[backend.deepspeed.args.zero_optimization]\nstage3_max_live_parameters = 9\nsub_group_size = 8",
            "backend.deepspeed.args: zero_optimization.sub_group_size not modeled",
        ),
    ],
)
def test_an_option_that_changes_memory_or_time_is_read_or_named(run, tmp_path, text, note):
    more = tmp_path / "more.toml"
    more.write_text(text)

    _, result = run("-c", str(more))

    assert [one for one in result["notes"] if re.search(note, one)], result["notes"]


def test_a_reward_model_on_the_host_takes_no_gpu(run, tmp_path):
    more = tmp_path / "more.toml"
    more.write_text(
        '[reward]\nuse = ["reward_model"]\n[reward.reward_model]\npath = "x"\ntimeout_s = 9.0\n'
        'device = "cpu"'
    )

    assert run("-c", str(more))[1]["notes"] == []


def test_prompts_beyond_the_batch_are_generated_on_policy_and_kept_off_policy(run):
    """48 instead of 32 prompts are written, half as many again; where they may be stale, the next step has them."""
    stale = ["--rollout.max_staleness", "1", "--algo.correction.kind", "tis"]
    lengths = ["--prompt-tokens", "256", "--response-tokens", "1024"]

    def prefill(*flags):
        _, result = run(*lengths, *flags)
        return next(phase["limit_s"] for phase in result["phases"] if phase["name"] == "prefill")

    more = ["--rollout.oversampling", "1.5"]
    assert prefill(*more) == pytest.approx(1.5 * prefill())
    assert prefill(*more, *stale) == pytest.approx(prefill(*stale))


def test_a_model_that_is_nowhere_is_asked_for(tmp_path, monkeypatch, config_text):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    path = tmp_path / "run.toml"
    path.write_text(config_text)

    with pytest.raises(
        ConfigError,
        match=r"`hf download.*config\.json`.*--model-config",
        check=has_code("model/not-found"),
    ):
        plan(["-c", str(path)])
    with pytest.raises(ConfigError, check=has_code("model/not-found")):
        plan(["-c", str(path), "--model", "./not/there"])


def test_an_adapter_that_is_only_read_has_the_shape_of_its_base(run, tmp_path, config_file):
    (tmp_path / "base").mkdir()
    shutil.copyfile(config_file("qwen2.5-1.5b"), tmp_path / "base" / "config.json")
    (tmp_path / "adapter").mkdir()
    settings = {"base_model_name_or_path": str(tmp_path / "base")}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))

    _, by_base = run("--algo.kl.coef", "0.1", "--ref.path", str(tmp_path / "base"))
    _, by_adapter = run("--algo.kl.coef", "0.1", "--ref.path", str(tmp_path / "adapter"))

    assert peak(by_adapter) == peak(by_base) > 0


def test_the_report_names_parts_phases_and_verdict(run, capsys, tmp_path, config_file, config_text):
    path = tmp_path / "run.toml"
    path.write_text(config_text)
    file = str(config_file("qwen2.5-1.5b"))

    assert main(["plan", "-c", str(path), "--model-config", file]) == 0
    out = capsys.readouterr().out
    assert "policy: optimizer state" in out
    assert "train policy" in out
    assert out.rstrip().endswith("It fits.")
    assert (
        main(
            [
                "plan",
                "-c",
                str(path),
                "--model-config",
                file,
                "--gpu",
                "l40s",
                "--train.max_tokens_per_micro_batch",
                "65536",
            ]
        )
        == 1
    )
    assert "It does not fit." in capsys.readouterr().out


def test_a_mistake_exits_with_2(capsys, tmp_path):
    assert main(["plan", "-c", str(tmp_path / "nothing.toml")]) == 2
    assert main(["plan", "--nodes", "many"]) == 2
    assert "--nodes" in capsys.readouterr().err


def test_help_lists_the_flags(capsys):
    assert main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--gpus-per-node" in out
    assert "--model-config" in out


@pytest.mark.parametrize(
    ("words", "flags", "expected"),
    [
        (["-c", "x"], ["--a", "1"], ["-c", "x", "--a", "1"]),
        (["--a", "0", "--b", "2"], ["--a", "1"], ["--b", "2", "--a", "1"]),
        (["--a=0", "-c", "x"], ["--a", "1"], ["-c", "x", "--a", "1"]),
        (["--a", "0", "1", "--b", "2"], ["--a", "3", "--a", "4"], ["--b", "2", "--a", "4"]),
    ],
)
def test_flags_take_the_place_of_those_of_the_same_name(words, flags, expected):
    assert replaced(words, flags) == expected


def test_no_torch_is_imported(tmp_path, config_file, config_text):
    path = tmp_path / "run.toml"
    path.write_text(config_text)
    script = (
        "import sys\n"
        "from rlhf_cli.main import main\n"
        f"code = main(['plan', '-c', {str(path)!r}, '--model-config', {str(config_file('qwen2.5-1.5b'))!r}])\n"
        "heavy = {'torch', 'transformers', 'ray', 'vllm', 'deepspeed'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)


def test_the_limit_of_the_weight_sync_is_that_of_the_way_they_take(run):
    """Weights of 3.1 GB, read and written on one GPU (4.3 TB/s), sent to another, or through the host's memory."""
    ray = ["--runtime", "ray", "--backend", "deepspeed", "--backend.deepspeed.zero_stage", "1"]
    split = ["--runtime.ray.colocate", "none"]
    flags = {
        "GPU memory": ray,
        "links between GPUs, to all engines at once": [*ray, *split],
        "host memory, out and back": [*ray, "--runtime.ray.weights", "store"],
    }

    for bound, words in flags.items():
        _, result = run(*words, "--prompt-tokens", "256", "--response-tokens", "1024")
        (sync,) = (phase for phase in result["phases"] if phase["name"] == "weight sync")
        assert sync["bound"] == bound
        if bound == "GPU memory":
            assert sync["limit_s"] == pytest.approx(2 * 2 * 1_543_714_304 / 4.3e12, rel=0.05)


ADAPTER = ["--actor.adapter", "lora"]
FACTORS = 28 * 16 * 41_216
"""Weights of factors of rank 16 beside all linear layers of Qwen2.5-1.5B."""


def phases(result):
    return {phase["name"]: phase["limit_s"] for phase in result["phases"]}


def test_a_policy_with_an_adapter_is_planned_as_one(run):
    """2 bytes for each weight of the base and 14 for each of the adapter's; its factors are what engines get."""
    _, full = run()
    code, result = run(*ADAPTER)

    assert code == 0
    assert result["notes"] == []
    assert result["parameters"] == {"policy": 1_543_714_304}
    assert result["adapters"] == {"policy": {"name": "lora", "trained_parameters": FACTORS}}
    assert full["adapters"] == {}
    trainer, engine = result["gpus"][0]["processes"]
    resident = 2 * 1_543_714_304 + 14 * FACTORS
    assert trainer["roles"]["policy"]["resident_gib"] == pytest.approx(resident / 2**30)
    assert engine["parts_gib"]["engine: slots for adapters"] == pytest.approx(
        4 * 2 * FACTORS / 2**30
    )
    sync = phases(result)["weight sync"] / phases(full)["weight sync"]
    assert sync == pytest.approx(FACTORS / 1_543_714_304)
    update = phases(result)["optimizer policy"] / phases(full)["optimizer policy"]
    assert update == pytest.approx(FACTORS / 1_543_714_304)
    assert 4 / 6 < phases(result)["train policy"] / phases(full)["train policy"] < 0.75


@pytest.mark.parametrize("flags", [(), ADAPTER], ids=["whole", "adapter"])
def test_weights_that_are_unpacked_count_as_plain_ones(run, flags):
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    assert run(*flags, quantization_config=settings) == run(*flags)


def test_merged_weights_are_sent_whole_and_need_no_slots(run):
    _, full = run()
    _, result = run(*ADAPTER, "--actor.lora.serve", "merged")

    assert phases(result)["weight sync"] == phases(full)["weight sync"]
    assert result["gpus"][0]["processes"][1] == full["gpus"][0]["processes"][1]


def test_the_reference_beside_an_adapter_is_a_pass_without_a_model(run, config_file):
    kl = [*ADAPTER, "--algo.kl.coef", "0.01"]
    _, own = run(*kl)
    config = f"reference={config_file('qwen2.5-1.5b')}"
    _, other = run(*kl, "--ref.path", "another/model", "--model-config", config)

    assert list(own["parameters"]) == ["policy"]
    assert list(other["parameters"]) == ["policy", "reference"]
    # The base's pass leaves the factors out.
    assert phases(own)["reference log-probs"] == phases(other)["reference log-probs"]
    assert phases(own)["reference log-probs"] < phases(own)["old log-probs"]


def test_a_critic_may_have_an_adapter_of_its_own(run):
    flags = ["--estimator", "gae", "--critic.adapter"]
    _, plain = run(*flags[:2])
    _, result = run(*flags, "lora", "--critic.lora.rank", "8")
    _, whole = run(*flags, "lora", "--critic.lora.modules_to_save", "norm")

    assert result["adapters"] == {"critic": {"name": "lora", "trained_parameters": FACTORS // 2}}
    assert whole["adapters"]["critic"]["trained_parameters"] == FACTORS + 1536
    assert peak(result) < peak(plain)
    assert phases(result)["train critic"] < phases(plain)["train critic"]


def test_a_base_in_4_bits_is_shared_with_the_engine(run):
    """Linear weights take 4.127 bits, embeddings and norms 16; decoding reads no more than this either."""
    pytest.importorskip("bitsandbytes")
    shared = ["--engine", "embedded", "--rollout.batch_size", "1", "--actor.adapter"]
    _, plain = run(*shared, "lora")
    _, packed = run(*shared, "qlora")

    linear = 1_310_195_712
    weights = [
        result["gpus"][0]["processes"][0]["parts_gib"]["policy: weights"] * 2**30
        for result in (plain, packed)
    ]
    assert weights[0] - weights[1] == pytest.approx(linear * (2 - 4.127 / 8), rel=1e-5)
    assert "weight sync" not in phases(packed)
    assert phases(packed)["decode"] < phases(plain)["decode"]


def test_ranks_send_gradients_of_what_is_trained(run):
    def exchange(*flags):
        return phases(run(*CLUSTER, "--backend.deepspeed.zero_stage", "1", *flags)[1])[
            "exchange policy"
        ]

    assert exchange(*ADAPTER) / exchange() == pytest.approx(FACTORS / 1_543_714_304)


def test_an_adapter_is_a_remedy_after_those_that_learn_the_same(run):
    flags = ["--gpu", "l40s", "--train.max_tokens_per_micro_batch", "4096"]
    code, result = run(*flags)

    remedies = [remedy["flags"] for remedy in result["remedies"]]
    adapters = [flags for flags in remedies if flags[0].endswith(".adapter")]
    assert code == 1
    assert adapters
    for remedy in result["remedies"]:
        if remedy["flags"] in adapters:
            code, _ = run(*flags, *remedy["flags"])
            assert (code == 0) == remedy["fits"]
    fitting = [remedy["flags"] in adapters for remedy in result["remedies"] if remedy["fits"]]
    assert fitting == sorted(fitting)


def test_an_adapter_that_reads_weights_is_planned_as_full_training_and_said(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from rlhf_testing.fakes import WholeModel\n\n\n"
        "class Mine(WholeModel):\n"
        "    def wrap(self, model, seed):\n"
        "        float(model.model.norm.weight.sum())\n"
        "        return model\n"
    )
    _, full = run("--actor.optim", "adam")

    _, result = run("--actor.adapter", "mine.py:Mine")

    assert result["adapters"] == {}
    assert result["gpus"] == full["gpus"]
    assert [
        note for note in result["notes"] if "cannot be counted in a model without numbers" in note
    ]


BIG = (
    *("--engine.vllm.memory_share", "0.45", "--backend.torch.gradient_checkpointing", "true"),
    *("--train.batch_size", "16", "--train.max_tokens_per_micro_batch", "20480"),
    *("--prompt-tokens", "256", "--response-tokens", "1024"),
)
"""Full training of 7.6e9 parameters with float32 Adam, in updates of one micro-batch."""


def test_a_run_that_only_fits_asleep_is_accepted_with_auto_and_refused_with_never(run):
    """14 bytes of weights, copies and state and 4 of gradients a parameter, beside an engine's share of the GPU."""
    fits, asleep = run(*BIG, "--runtime.sleep", "auto", model="qwen2.5-7b")
    refused, awake = run(*BIG, model="qwen2.5-7b")

    assert (fits, refused) == (0, 1)
    assert asleep["sleep"]["on"]
    assert not awake["sleep"]["on"]
    phases = asleep["gpus"][0]["phases_gib"]
    assert peak(asleep) == max(phase["asleep"] for phase in phases.values())
    assert peak(awake) == pytest.approx(phases["training"]["awake"])
    (problem,) = awake["problems"]
    assert f"runtime.sleep is never, and with state it needs {peak(asleep):.1f}" in problem
    assert ["--runtime.sleep", "state"] in [remedy["flags"] for remedy in awake["remedies"]]


def test_the_moves_are_a_phase_of_the_step(run):
    """Weights, 2 bytes a parameter, leave and come back, and so do the engine's if it is to keep them; copies and
    Adam's state, 12 bytes, leave, and come back beside the passes."""
    keeps = ("--engine.vllm.sleep_level", "1")
    _, result = run(*BIG, "--runtime.sleep", "always", *keeps, model="qwen2.5-7b")
    _, dropped = run(*BIG, "--runtime.sleep", "always", model="qwen2.5-7b")

    parameters = result["parameters"]["policy"]
    seconds = parameters * (12 + 2 * (2 + 2)) / 50e9
    assert dropped["sleep"]["seconds"] == pytest.approx(parameters * (12 + 2 * 2) / 50e9)
    (phase,) = [one for one in result["phases"] if one["name"] == "sleep and wake"]
    assert phase["limit_s"] == pytest.approx(seconds)
    assert result["sleep"]["seconds"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("sleep", "bytes_of_a_parameter", "waited_for"),
    [("engine", 0, 0), ("state", 12, 12), ("always", 14, 12 + 2 * 2)],
)
def test_only_what_the_option_says_is_moved(run, sleep, bytes_of_a_parameter, waited_for):
    """Of 14 bytes of a parameter 2 are its weight, 4 its float32 copy and 8 Adam's state. Weights alone are waited for
    both ways."""
    _, result = run(*BIG, "--runtime.sleep", sleep, model="qwen2.5-7b")

    moved = result["parameters"]["policy"] * waited_for
    assert result["sleep"]["seconds"] == pytest.approx(moved / 50e9)
    phases = result["gpus"][0]["phases_gib"]
    stays = 14 - bytes_of_a_parameter
    resident = result["parameters"]["policy"] * stays / 2**30
    alone = phases["generating"]["asleep"] - 1.03 * resident
    assert alone == pytest.approx(0.45 * 139.8, rel=0.03), "the engine's share and two contexts"


@pytest.mark.parametrize("updates", [1, 2])
def test_state_that_comes_back_for_longer_than_the_first_passes_take_is_waited_for(run, updates):
    """Training on 8 short sequences takes 0.2 s; 91 GB of state come back in 1.8, before the first update."""
    each = str(8 // updates)
    few = ("--rollout.batch_size", "1", "--train.batch_size", each, "--response-tokens", "10")
    flags = [*BIG[: BIG.index("--train.batch_size")], *BIG[BIG.index("--train.batch_size") + 2 :]]
    flags = flags[: flags.index("--response-tokens")]

    _, result = run(*flags, *few, "--runtime.sleep", "state", model="qwen2.5-7b")

    measured = {phase["name"]: phase["measured_s"] for phase in result["phases"]}
    passes = measured["train policy"] / updates + measured.get("old log-probs", 0.0)
    back = result["parameters"]["policy"] * 12 / 50e9
    assert passes < back
    assert result["sleep"]["seconds"] == pytest.approx(2 * back - passes)


def test_a_run_that_fits_does_not_sleep_by_itself(run):
    _, result = run("--runtime.sleep", "auto")

    assert result["sleep"] == {
        "option": "auto",
        "on": False,
        "leaving": "nothing",  # it would be enough, if anything were
        "seconds": 0.0,
    }
    assert "sleep and wake" not in {phase["name"] for phase in result["phases"]}


def test_the_peaks_of_each_phase_are_printed_with_and_without_sleep(
    tmp_path, config_text, config_file, capsys
):
    path = tmp_path / "run.toml"
    path.write_text(config_text)
    words = ["--model-config", str(config_file("qwen2.5-7b")), *BIG, "--runtime.sleep", "auto"]

    assert plan(["-c", str(path), *words]) == 0

    text = capsys.readouterr().out
    for phase in ("start", "generating", "delivering weights", "training"):
        assert re.search(rf"^{phase} +\d+\.\d +\d+\.\d$", text, re.MULTILINE)
    assert (
        "runtime.sleep is auto: the engine sleeps while roles compute, and their training state leaves"
        in text
    )
    assert "at 50 GB/s to host memory (assumed)" in text


def test_always_is_refused_where_the_engine_has_gpus_of_its_own(run):
    with pytest.raises(ConfigError, check=has_code("config/sleep-without-sharing")):
        run(*CLUSTER, "--runtime.ray.colocate", "policy", "--runtime.sleep", "always")


FSDP = (
    *("--runtime", "ray", "--backend", "fsdp", "--runtime.ray.ranks.policy", "2"),
    *("--runtime.ray.engines", "2", "--runtime.sleep", "always"),
    *(
        "--backend.fsdp.gradient_checkpointing",
        "true",
        "--train.max_tokens_per_micro_batch",
        "14336",
    ),
    *("--prompt-tokens", "256", "--response-tokens", "1024", "--engine.vllm.memory_share", "0.25"),
)


def test_a_step_of_fsdp_takes_what_was_measured(run):
    """7B on two H200 (docs/performance.md): generation at 37 and training at 20 thousand tokens a second, moves of 1.4
    to 1.5 s, about 25 s in all. vLLM took a quarter of the whole card."""
    _, report = run(*FSDP, model="qwen2.5-7b")
    seconds = {phase["name"]: phase["measured_s"] or phase["limit_s"] for phase in report["phases"]}

    generated, trained = 256 * 1024, 256 * 1280
    training = sum(seconds[f"{name} policy"] for name in ("train", "optimizer", "exchange"))
    assert seconds["prefill"] + seconds["decode"] == pytest.approx(generated / 37e3, rel=0.05)
    assert training == pytest.approx(trained / 20e3, rel=0.05)
    assert seconds["sleep and wake"] == pytest.approx(1.45, rel=0.2)
    assert report["step_s"]["at_measured_rates"] == pytest.approx(25, rel=0.05)


def test_layers_of_fsdp_travel_beside_passes(run):
    """10 micro-batches at 400 GB/s, half of each array: 6.53e9 weights of 28 layers and 1.09e9 outside of them. Twice
    the layers' weights, once the others' in 2 bytes, and all gradients in 4."""

    def exchange(*flags):
        _, report = run(*FSDP, *flags, model="qwen2.5-7b")
        phases = {phase["name"]: phase for phase in report["phases"]}
        return phases["exchange policy"], phases["train policy"]["measured_s"]

    layers, rest = 6_525_618_176, 7_615_616_512 - 6_525_618_176
    found, passes = exchange()
    once, _ = exchange("--backend.fsdp.reshard_after_forward", "false")

    every = (2 * 2 * layers + 2 * rest + 4 * (layers + rest)) / 2
    alone = (2 * (layers / 28 + rest) + 4 * (layers / 28 + rest)) / 2
    assert found["limit_s"] == pytest.approx(10 * every / 400e9, rel=1e-6)
    assert found["measured_s"] == pytest.approx(10 * alone / 400e9, rel=1e-6)
    assert once["limit_s"] == pytest.approx(10 * (every - layers) / 400e9, rel=1e-6)
    assert passes > found["limit_s"]


def test_factors_of_fsdp_travel_with_their_layers(run):
    """As above, under an adapter of rank 16: (40,448 + 49,664) x 16 weights of each layer, and no gradient outside."""
    _, report = run(*FSDP, "--actor.adapter", "lora", "--actor.lora.rank", "16", model="qwen2.5-7b")
    (found,) = [phase for phase in report["phases"] if phase["name"] == "exchange policy"]

    layers, rest = 6_525_618_176, 7_615_616_512 - 6_525_618_176
    factors = 28 * 16 * (40_448 + 49_664)
    every = (2 * 2 * (layers + factors) + 2 * rest + 4 * factors) / 2
    alone = (2 * ((layers + factors) / 28 + rest) + 4 * factors / 28) / 2
    assert found["limit_s"] == pytest.approx(10 * every / 400e9, rel=1e-6)
    assert found["measured_s"] == pytest.approx(10 * alone / 400e9, rel=1e-6)
