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
CACHE = "engine.vllm.kv_cache_gib"
FOUR = (
    *("--runtime", "ray", "--backend", "deepspeed", "--engine", "vllm"),
    *("--runtime.ray.ranks.policy", "4", "--runtime.ray.engines", "4"),
    *("--rollout.batch_size", "32", "--rollout.n_samples_per_prompt", "8"),
    *("--rollout.max_new_tokens", "1024", "--data.max_prompt_tokens", "256"),
    *("--reward", "exact_match", "--data", "prompts.jsonl", "--steps", "3"),
)
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
