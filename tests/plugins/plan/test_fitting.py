"""Options about memory that nobody sets, for GPUs of one model."""

import pytest

from rlhf_cli import train
from rlhf_cli.training import layers_of, split_arguments
from rlhf_config import Layer, resolve
from rlhf_config.files import writable
from rlhf_config.layers import leaves, merge
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import Accelerator, MemoryFitter
from rlhf_plugin_plan.advice import COMMAND, advice_on, options_on
from rlhf_plugin_plan.machine.hardware import find_gpu

CHECKPOINTING = "backend.deepspeed.gradient_checkpointing"
TOKENS = "train.max_tokens_per_micro_batch"
COMPILE = "backend.deepspeed.compile"
CACHE = "engine.vllm.kv_cache_gib"
FOUR = (
    *("--runtime", "ray", "--backend", "deepspeed", "--engine", "vllm"),
    *("--runtime.ray.ranks.policy", "4", "--runtime.ray.engines", "4"),
    *("--rollout.batch_size", "32", "--rollout.n_samples_per_prompt", "8"),
    *("--rollout.max_new_tokens", "1024", "--data.max_prompt_tokens", "256"),
    *("--reward", "exact_match", "--data", "prompts.jsonl", "--steps", "3"),
)
MANY = (*FOUR[: FOUR.index("--steps")], "--steps", "500")
ONE = (
    "--engine",
    "vllm",
    "--backend.torch.compile",
    "true",
    *FOUR[FOUR.index("--rollout.batch_size") :],
)


@pytest.fixture
def fitted(tmp_path, config_file):
    """The choice for a model in a folder, and the decision about sleep that follows from it."""
    plugins = plugin_loader.load()

    def of(gpu, model, *flags, dtype="bfloat16", base=FOUR):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        config_file(model).rename(folder / "config.json")
        words = ["--model", str(folder), "--output", str(tmp_path / "run"), *base, *flags]
        words += ["--model.dtype", dtype]
        layers = layers_of(split_arguments(words), train.DEFAULTS)
        accelerators = (Accelerator(name="GPU", memory_gib=80.0),)
        before = resolve(layers, plugins, accelerators)
        given = frozenset(path for path, _ in leaves(merge(layers).values))
        spec = find_gpu(gpu)
        found = options_on(spec, writable(before.tree), given, plugins)
        if found is None:
            return None, None
        after = resolve([Layer.of_paths(found.values, "plan"), *layers], plugins, accelerators)
        return found, advice_on(spec, writable(after.tree), plugins)

    return of


def test_the_command_fits_options():
    assert isinstance(COMMAND, MemoryFitter)


def test_a_model_that_filled_four_gpus_fits_them_without_an_option(fitted):
    """7.6e9 parameters on four GPUs of 80 GB: by defaults 152 GiB were needed."""
    found, advice = fitted("h100", "qwen2.5-7b")

    assert set(found.values) == {CHECKPOINTING, TOKENS, CACHE}
    assert advice.sleeps
    assert advice.leaving == "nothing", "the engine's memory alone is enough, and costs no seconds"
    assert found.reason.startswith("memory: gradient_checkpointing ")
    assert "the fastest that fits of" in found.reason


def test_micro_batches_are_as_large_as_a_gpu_needs_to_be_busy(fitted):
    """1.5e9 parameters on one H200: 2048 tokens were chosen, with which a step takes five times as long."""
    found, _ = fitted("h200", "qwen2.5-1.5b", base=ONE)

    assert found.values[TOKENS] >= 14_336


def test_a_long_run_compiles_layers_and_a_short_one_does_not(fitted):
    """7.6e9 parameters on four H100: 20 s a step are predicted with layers as they are, 16 s with compiled ones."""
    long, _ = fitted("h100", "qwen2.5-7b", base=MANY)
    one, _ = fitted(
        "h100",
        "qwen2.5-1.5b",
        base=("--engine", "vllm", *MANY[MANY.index("--rollout.batch_size") :]),
    )
    short, _ = fitted("h100", "qwen2.5-7b")

    assert long.values[COMPILE] is True
    assert "compile true" in long.reason
    assert one.values["backend.torch.compile"] is True
    assert COMPILE not in short.values


def test_a_run_without_a_number_of_steps_is_long(fitted):
    without = (*FOUR[: FOUR.index("--steps")],)

    found, _ = fitted("h100", "qwen2.5-7b", base=without)

    assert found.values[COMPILE] is True


def test_layers_are_compiled_only_where_the_stage_allows_it(fitted):
    found, _ = fitted("h100", "qwen2.5-7b", "--backend.deepspeed.zero_stage", "3", base=MANY)

    assert COMPILE not in found.values


def test_compiled_layers_can_be_refused(fitted):
    found, _ = fitted("h100", "qwen2.5-7b", f"--{COMPILE}", "false", base=MANY)

    assert COMPILE not in found.values


def test_where_only_the_third_stage_fits_layers_are_as_they_are(fitted):
    ranks = ("--runtime.ray.ranks.policy", "8", "--runtime.ray.engines", "8")
    first, last = MANY.index("--runtime.ray.ranks.policy"), MANY.index("--rollout.batch_size")

    found, _ = fitted("h200", "qwen2.5-32b", base=(*MANY[:first], *ranks, *MANY[last:]))

    assert found.values["backend.deepspeed.zero_stage"] == 3
    assert found.values[COMPILE] is False


def test_a_small_model_gets_larger_micro_batches(fitted):
    """0.5e9 parameters on one H200: 32 768 tokens take 0.7 of the time of 16 384 (benchmarks/micro_batches.py)."""
    found, _ = fitted("h200", "qwen2.5-0.5b", base=ONE)

    assert found.values[TOKENS] > 16_384


def test_responses_that_are_longer_than_the_default_of_a_pass_are_planned(fitted):
    """A prompt of 256 tokens and 20 480 behind it: the smallest size that is tried is 20 736, in steps of 1024."""
    base = ["20480" if word == "1024" else word for word in ONE]

    found, _ = fitted("h200", "qwen2.5-1.5b", base=base)

    assert found.values[TOKENS] >= 20_736
    assert f"micro-batches of {found.values[TOKENS]:,} tokens" in found.reason


def test_what_somebody_sets_stays(fitted):
    by_hand = ("--train.max_tokens_per_micro_batch", "10240", "--engine.vllm.memory_share", "0.4")

    found, _ = fitted("h100", "qwen2.5-7b", *by_hand)

    assert set(found.values) == {CHECKPOINTING}


def test_everything_set_leaves_nothing_to_choose(fitted):
    flags = ("--train.max_tokens_per_micro_batch", "10240", "--engine.vllm.kv_cache_gib", "5")

    found, _ = fitted("h100", "qwen2.5-7b", *flags, f"--{CHECKPOINTING}", "true")

    assert found is None


def test_where_memory_is_plenty_nothing_is_recomputed(fitted):
    found, advice = fitted("h200", "qwen2.5-1.5b")

    assert found.values[CHECKPOINTING] is False
    assert not advice.sleeps


def test_a_model_that_fits_nowhere_keeps_its_defaults(fitted):
    """The plan then says what is missing, and by how much."""
    found, _ = fitted("l40s", "qwen2.5-7b", dtype="float32")

    assert found is None
