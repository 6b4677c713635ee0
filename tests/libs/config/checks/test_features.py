"""What options mean for components: who weighs stale samples, how many updates a step has, which words a run brings."""

import pytest

from rlhf_cli.train import DEFAULTS
from rlhf_config import Layer, read_toml, resolve_options
from rlhf_config.checks.features import (
    aggregation_of,
    features_of,
    is_off_policy,
    old_logprobs_from,
    prompts_in_flight,
    spare_prompts,
    updates_per_batch,
)
from rlhf_config.train import TRAIN
from rlhf_core import CapabilityError, ConfigError
from rlhf_core.capabilities import BROUGHT_BY_OPTIONS
from rlhf_core.plugins import load
from rlhf_testing.errors import has_code

ROOM = ("--rollout.max_length", "2048")
AHEAD = ("--rollout.max_staleness", "2")


def old(found):
    return old_logprobs_from(found.run, found.selections)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "reuse"),
        (("--train.inner_epochs", "2"), "recompute"),
        (AHEAD, "rollout"),
        ((*AHEAD, "--train.inner_epochs", "2"), "rollout"),
        # A correction weighs samples for where they came from; the ratio then starts from the trainer's own policy.
        ((*AHEAD, "--algo.correction.kind", "cut"), "reuse"),
        ((*AHEAD, "--algo.correction.kind", "cut", "--train.inner_epochs", "2"), "recompute"),
        ((*AHEAD, "--algo.correction.kind", "cut", "--algo.loss.old_logprobs=reuse"), "reuse"),
        ((*AHEAD, "--algo.loss.old_logprobs", "rollout"), "rollout"),
        ((*AHEAD, "--loss", "plain_gradient", "--algo.correction.kind", "cut"), "reuse"),
        ((*AHEAD, "--loss", "reads_sampler"), "reuse"),
    ],
)
def test_stale_samples_are_weighed_by_somebody(resolved, words, expected):
    assert old(resolved(*words)) == expected


def test_components_see_that_rollouts_are_stale_and_what_stands_for_the_old_policy(resolved):
    found, on_policy = resolved(*AHEAD), resolved()

    added = features_of(found.run, found.selections)
    added -= features_of(on_policy.run, on_policy.selections)
    assert added == {"stale_rollouts", "rollout_as_old"}


@pytest.mark.parametrize(
    ("words", "spare", "in_flight"),
    [
        ((), 0, 10),
        (("--rollout.oversampling", "1.1"), 1, 11),
        (("--rollout.oversampling", "1.11"), 2, 12),
        (AHEAD, 0, 30),
        # Spare prompts take their place among those that run ahead.
        ((*AHEAD, "--rollout.oversampling", "1.5"), 5, 30),
        ((*AHEAD, "--rollout.oversampling", "4"), 30, 40),
        ((*AHEAD, "--rollout.concurrency", "7"), 0, 7),
    ],
)
def test_engines_are_told_how_many_prompts_may_be_in_flight(resolved, words, spare, in_flight):
    rollout = resolved("--rollout.batch_size", "10", *words).run.rollout

    assert spare_prompts(rollout) == spare
    assert prompts_in_flight(rollout) == in_flight


CAPABILITIES = {
    "group of one": (["--rollout.n_samples_per_prompt", "1"], "needs at least 2"),
    "turns without an environment": (["--executor", "turns"], "choose one with --env"),
    "loss that needs a correction": (["--loss", "needs_is"], "set --algo.correction.kind"),
    "correction of a truncated distribution": (
        ["--algo.correction.kind", "cut", "--rollout.top_p", "0.9"],
        "'renormalized_sampling', which comes from --rollout.top_p, top_k, min_p or min_new_tokens",
    ),
    "optimizer that needs a KL": (["--optim", "picky"], "--algo.kl.mode loss"),
    "factors for an engine that takes none": (
        ["--actor.adapter", "beside"],
        "choose an engine that serves adapters",
    ),
    "imitation without responses": (
        ["--algo.terms.use", "imitate"],
        "give the responses to imitate with --supervised.data",
    ),
}


@pytest.mark.parametrize(("words", "part"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_components_that_cannot_work_together_are_refused(resolved, words, part):
    with pytest.raises(CapabilityError) as caught:
        resolved(*words)

    assert part in str(caught.value)


def test_the_engine_need_not_serve_a_critics_adapter(resolved):
    found = resolved("--estimator", "discounted", "--critic.adapter", "beside")

    assert [chosen.registered.name for chosen in found.selections["critic.adapter"]] == ["beside"]


def brought(found):
    return features_of(found.run, found.selections)


def test_every_word_that_options_may_bring_is_known_and_some_options_bring_it(resolved):
    everything = brought(
        resolved(
            *("--env", "maze", "--executor", "turns", "--rollout.max_length", "2048"),
            *("--algo.correction.kind", "cut", "--reward.shapers", "bounds"),
            *("--actor.adapter", "thin", "--algo.kl.coef=0.1", "--algo.kl.target=1"),
            *("--train.inner_epochs", "2", "--algo.loss.entropy_coef", "0.1"),
            *("--algo.terms.use", "imitate", "follow", "--supervised.data", "x"),
            *("--algo.teacher.path", "x"),
        )
    )
    others = [
        brought(resolved("--rollout.max_staleness", "1")),
        brought(resolved("--algo.kl.coef=0.1", "--algo.kl.mode=loss", "--algo.kl.estimator=k3")),
        brought(resolved("--rollout.top_p", "0.9")),
        brought(resolved("--model.vision", "eyes", "--engine", "takes_images")),
        brought(resolved("--model.dtype", "bfloat16")),
    ]

    assert everything.union(*others) == set(BROUGHT_BY_OPTIONS)


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (("--algo.kl.coef", "0.1"), {"kl_in_reward"}),
        (("--algo.kl.coef=1", "--algo.kl.mode=loss", "--algo.kl.estimator=k3"), {"kl_in_loss"}),
        (("--algo.kl.coef", "0.1", "--algo.kl.target", "1"), {"kl_in_reward", "adaptive_kl"}),
        (("--rollout.top_k", "5"), {"renormalized_sampling"}),
        (("--rollout.min_new_tokens", "1"), {"renormalized_sampling"}),
        (("--rollout.temperature", "0.5"), set()),
        (("--train.batch_size", "256"), {"several_updates"}),
        (("--train.batch_size", "512"), set()),
        (("--algo.loss.entropy_target", "0.5"), {"entropy_bonus"}),
        (("--eval.fraction", "0.1"), set()),
    ],
)
def test_an_option_brings_its_words_and_no_others(resolved, words, added):
    assert brought(resolved(*words)) - brought(resolved()) == added


@pytest.mark.parametrize(
    ("words", "updates"),
    [
        ((), 1),
        (("--train.inner_epochs", "3"), 3),
        (("--train.batch_size", "12"), 1),
        (("--train.batch_size", "4"), 3),
        (("--train.batch_size", "4", "--train.inner_epochs", "2"), 6),
    ],
)
def test_a_step_has_minibatches_times_inner_epochs_updates(resolved, words, updates):
    small = ("--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "3")

    assert updates_per_batch(resolved(*small, *words).run) == updates


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("clip", True), ("reads_sampler", True), ("plain_gradient", False), ("by_sequence", False)],
)
def test_a_loss_says_that_it_allows_for_older_samples_or_reads_the_sampler(
    resolved, loss, expected
):
    assert is_off_policy(resolved("--loss", loss).one("algo.loss.policy")) is expected


def test_the_aggregation_is_as_written_else_the_first_ones_own_else_by_tokens(resolved):
    plain = resolved().one("algo.loss.policy")
    own = resolved("--loss", "by_sequence").one("algo.loss.policy")

    assert aggregation_of("auto", [plain]) == "token-mean"
    assert aggregation_of("auto", [own]) == aggregation_of("auto", [plain, own])
    assert aggregation_of("auto", [own]) == "seq-mean-token-mean"
    assert aggregation_of("token-mean", [own]) == "token-mean"


def test_what_a_critic_would_need_does_not_matter_without_one(resolved):
    resolved(files=[Layer.of({"critic": {"optim": "picky"}}, "run.toml")])
    with pytest.raises(
        CapabilityError, match=r"--critic\.optim", check=has_code("config/missing-capability")
    ):
        resolved("--estimator", "discounted", "--critic.optim", "picky")


def test_images_need_an_engine_an_executor_and_a_backend_that_take_them(resolved):
    words = ("--model.vision", "eyes")

    resolved(*words, "--engine", "takes_images")
    with pytest.raises(
        CapabilityError,
        match=r"'engine_reads_images': .*choose --engine embedded",
        check=has_code("config/missing-capability"),
    ):
        resolved(*words)
    with pytest.raises(
        CapabilityError,
        match="'executor_passes_images'",
        check=has_code("config/missing-capability"),
    ):
        resolved(*words, "--engine", "takes_images", "--executor", "turns", "--env", "maze", *ROOM)


def test_routes_need_an_engine_that_tells_them_and_a_backend_that_follows_them(resolved):
    words = ("--algo.correction.replay_routes", "true")

    with pytest.raises(
        CapabilityError,
        match=r"^--algo\.correction\.replay_routes with .*fake_engine: this engine does not tell .* embedded",
        check=has_code("config/no-routes"),
    ):
        resolved(*words)
    with pytest.raises(
        CapabilityError,
        match=r"replay_routes with .*table: .* chooses",
        check=has_code("config/no-routes"),
    ):
        resolved(*words, "--engine", "takes_factors")


def test_what_would_read_tokens_of_images_as_text_is_refused_with_images(resolved):
    resolved("--reward", "reads_tokens")
    with pytest.raises(
        CapabilityError,
        match=r"--reward reads_tokens.*'images'.*--model\.vision",
        check=has_code("config/conflicting-component"),
    ):
        resolved("--reward", "reads_tokens", "--model.vision", "eyes", "--engine", "takes_images")


def run_of(**given):
    values = {"model.path": "m", "data.train": ("rows.jsonl",), "reward.use": ("math",)}
    layers = [read_toml(DEFAULTS, defaults=True), Layer.of_paths(values | given, "words")]
    return resolve_options(layers, load(), TRAIN)


RAY = {"runtime.name": "ray", "engine.name": "embedded"}


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_an_adapter_within_a_model_of_another_process_is_refused_before_anything_loads(adapter):
    """``--check`` and ``--dry-run`` accepted it, and the engine refused it when the model had been loaded."""
    with pytest.raises(CapabilityError, check=has_code("adapter/not-servable")) as caught:
        run_of(**RAY, **{"actor.adapter": adapter})

    for part in (f"adapter {adapter} needs 'serves_adapters'", "ray", "embedded", "merged"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        RAY,
        RAY | {"actor.adapter": "lora", "actor.lora.serve": "merged"},
        RAY | {"actor.adapter": "dora"},
        RAY | {"engine.name": "vllm", "actor.adapter": "lora"},
        {"runtime.name": "local", "engine.name": "embedded", "actor.adapter": "lora"},
        # Engines never get a critic's adapter.
        RAY | {"algo.advantage.estimator": "gae", "critic.adapter": "lora"},
    ],
)
def test_what_an_engine_in_another_process_can_serve_is_accepted(given):
    assert run_of(**given).one("engine.name").name == given["engine.name"]


DEEP = {"backend.name": "deepspeed", "backend.deepspeed.deep_compile": True}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (DEEP | {"actor.adapter": "dora"}, "deepspeed cannot be combined with 'model_adapter'"),
        (
            DEEP | {"backend.deepspeed.zero_stage": 1, "model.dtype": "bfloat16"},
            "deepspeed cannot be combined with 'bfloat16_weights'",
        ),
        (
            {
                "runtime.name": "ray",
                "engine.name": "vllm",
                "engine.vllm.sleep_level": 2,
                "runtime.sleep": "always",
                "actor.adapter": "lora",
            },
            "lora needs 'serves_adapters'",
        ),
        (
            {"backend.name": "fsdp", "actor.adapter": "qlora"},
            "fsdp cannot be combined with 'four_bit_base' (the adapter's base is held in 4 bits), which comes from "
            "words: actor.adapter qlora. Choose another words: backend.name, or another words: actor.adapter.",
        ),
        (
            {"backend.name": "deepspeed", "actor.adapter": "qlora"},
            "Choose other options of words: backend.name, another ",
        ),
        (
            {
                "backend.name": "fsdp",
                "critic.adapter": "qlora",
                "algo.advantage.estimator": "gae",
            },
            "which comes from words: critic.adapter qlora",
        ),
        (
            {
                "actor.adapter": "qlora",
                "engine.embedded.overlap": "always",
                "rollout.max_staleness": 1,
            },
            "qlora needs 'serves_four_bits'",
        ),
    ],
)
def test_what_was_refused_after_a_model_had_been_loaded_is_refused_by_its_options(given, part):
    with pytest.raises(CapabilityError) as caught:
        run_of(**given)

    assert part in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        DEEP | {"backend.deepspeed.zero_stage": 2, "model.dtype": "bfloat16"},
        {
            "runtime.name": "ray",
            "engine.name": "vllm",
            "engine.vllm.sleep_level": 2,
            "runtime.sleep": "always",
            "actor.adapter": "dora",
        },
    ],
)
def test_what_goes_together_is_accepted(given):
    run_of(**given)


SPREAD = {"runtime.name": "ray", "engine.name": "vllm", "backend.name": "torch"}


@pytest.mark.parametrize(
    "given",
    [{"runtime.ray.ranks.policy": 2}, {"runtime.ray.gpus": 2}, {"runtime.ray.ranks.ref": 2}],
)
def test_several_ranks_of_a_backend_of_one_process_are_refused_by_their_options(given):
    with pytest.raises(ConfigError, check=has_code("ranks/one-process")) as caught:
        run_of(**SPREAD, **given)

    assert "backend.name torch trains in one process only" in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"runtime.ray.gpus": 2, "runtime.ray.ranks.policy": 1},
        {"runtime.ray.ranks.policy": 2, "backend.name": "fsdp"},
        {"runtime.ray.gpus": 2, "backend.name": "deepspeed"},
        {"backend.name": "deepspeed", "backend.deepspeed.zero_stage": 0, "actor.adapter": "qlora"},
    ],
)
def test_ranks_that_a_backend_can_have_are_accepted(given):
    run_of(**SPREAD | given)
