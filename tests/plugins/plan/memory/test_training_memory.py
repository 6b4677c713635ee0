"""Parts by hand, the limits that reduce to something known, and two measurements on an H200."""

from dataclasses import replace

import pytest

from rlhf_plugin_plan.memory.role import MicroBatch, Role
from rlhf_plugin_plan.memory.sharing import Sharing
from rlhf_plugin_plan.memory.training_memory import moments, role_memory
from rlhf_plugin_plan.model.activations import (
    AdaptedLayer,
    Precision,
    adapted_layer_bytes,
    checkpoint_bytes,
    layer_bytes,
)
from rlhf_plugin_plan.model.adapters import AdapterCounts

BF16 = Precision(parameters="bfloat16", compute="bfloat16")
AUTOCAST = Precision(parameters="float32", compute="bfloat16")
GIB = 2**30


def policy(shape, precision=BF16, **changes):
    role = Role(name="policy", shape=shape, precision=precision, trained=True, has_head=True)
    return replace(role, **changes)


SMALL = MicroBatch(tokens=6, actions=4, several=True)


def test_a_layer_keeps_its_tensors_by_hand(pencil):
    # Norms: 2 x (input 4 + normalized 2 + output 2) x 2. Attention: q, k, v, out of 2 each, 2 bytes. Feed-forward:
    # 4 arrays of 3, 2 bytes. Softmax and norms: 4 + 8.
    assert layer_bytes(pencil, BF16) == 32 + 16 + 24 + 12
    # Under autocast: inputs and normalized inputs in float32, three casts of the first norm and two of the second.
    assert layer_bytes(pencil, AUTOCAST) == (8 + 6) * 2 + (8 + 4) * 2 + 16 + 24 + 12


def test_a_compiled_layer_keeps_bfloat16_only_and_no_activation_function(pencil):
    # Norms: 2 x (input 2 + normalized 2) x 2. Attention and statistics as above. Feed-forward: gate, up, product.
    assert layer_bytes(pencil, BF16, compiled=True) == 16 + 16 + 18 + 12


def test_query_and_key_norms_keep_a_float32_copy(pencil):
    assert (
        layer_bytes(replace(pencil, qk_norm=True), BF16) - layer_bytes(pencil, BF16)
        == 6 * 4 + 4 * 2
    )


def test_shared_prompts_are_kept_once_but_for_attention(pencil):
    """Of 6 tokens 2 are repeated: 4 x a layer, 2 x q, k, v and output of attention, and 4 x the output that goes on."""
    whole, shared = (
        moments(policy(pencil), Sharing(), replace(SMALL, repeated=repeated))[
            "backward of the head"
        ]
        for repeated in (0, 2)
    )
    layer = layer_bytes(pencil, BF16)
    assert whole["activations"] == 6 * layer * pencil.layers
    assert shared["activations"] == (4 * layer + 2 * 16 + 4 * 4) * pencil.layers


def test_recomputing_keeps_a_layers_input_only(pencil):
    assert checkpoint_bytes(pencil, BF16) == 2 * 2
    assert checkpoint_bytes(pencil, AUTOCAST) == 4 * 2


def test_what_stays_of_a_bfloat16_policy_is_14_bytes_a_parameter(pencil):
    memory = role_memory(policy(pencil), Sharing(), SMALL)

    assert dict(memory.resident) == {"weights": 100, "float32 copies": 200, "optimizer state": 400}


def test_what_stays_of_a_float32_policy_is_12_bytes_a_parameter(pencil):
    memory = role_memory(policy(pencil, AUTOCAST), Sharing(), SMALL)

    assert dict(memory.resident) == {"weights": 200, "optimizer state": 400}


def test_a_role_that_only_scores_has_weights_and_nothing_else(pencil):
    memory = role_memory(policy(pencil, trained=False), Sharing(), SMALL)

    assert dict(memory.resident) == {"weights": 100}
    assert memory.moment == "scoring"


def test_stages_share_what_they_say(pencil):
    """50 parameters, of which the tied table has 10; 5 ranks."""

    def resident(stage):
        return dict(role_memory(policy(pencil), Sharing(stage=stage, ranks=5), SMALL).resident)

    assert resident(1) == {"weights": 100, "float32 copies": 40, "optimizer state": 80}
    assert resident(2) == resident(1)
    assert resident(3) == {
        "weights": 20 + 20,  # a fifth, and the head whole
        "float32 copies": 40,
        "optimizer state": 80,
        "gradients": 40,
    }


def test_one_rank_of_any_stage_has_at_least_what_stage_0_has(pencil):
    whole = role_memory(policy(pencil), Sharing(), SMALL).resident_bytes

    assert role_memory(policy(pencil), Sharing(stage=2), SMALL).resident_bytes == whole
    assert role_memory(policy(pencil), Sharing(stage=3), SMALL).resident_bytes > whole


def test_offloading_takes_state_from_the_gpu(pencil):
    sharing = Sharing(stage=3, ranks=5, offload_optimizer=True, offload_parameters=True)

    assert dict(role_memory(policy(pencil), sharing, SMALL).resident) == {"weights": 20}


def test_a_reference_that_follows_is_4_bytes_a_parameter(pencil):
    following = role_memory(policy(pencil, reference=True), Sharing(), SMALL)

    assert following.resident["reference"] == 200


def test_a_moving_average_is_4_bytes_a_parameter(pencil):
    averaged = role_memory(policy(pencil, average=True), Sharing(), SMALL)

    assert averaged.resident["moving average"] == 200


def test_the_optimizers_state_is_by_kind_of_parameter(pencil):
    muon = policy(pencil, optimizer_bytes=4.0, optimizer_table_bytes=8.0)

    assert role_memory(muon, Sharing(), SMALL).resident["optimizer state"] == 4 * 40 + 8 * 10


def test_a_critic_does_not_train_an_untied_head(pencil):
    critic = policy(replace(pencil, tied=False), has_head=False)

    memory = role_memory(critic, Sharing(), SMALL)

    assert memory.resident["weights"] == 2 * 60
    assert memory.resident["float32 copies"] == 4 * 50


def test_the_backward_pass_of_the_head_by_hand(pencil):
    """4 actions x 5 logits x 2 arrays of 2 bytes; gradients of 10 weights: a sum of 4 bytes and a new one of 2."""
    parts = moments(policy(pencil), Sharing(), SMALL)["backward of the head"]

    assert dict(parts) == {
        "gradients": 4 * 50,
        "activations": 6 * layer_bytes(pencil, BF16),
        "last norm and hidden states": 6 * (8 + 4) * 2,
        "logits of a chunk": 80,
        "gradient of the head": 60,
    }


def test_under_autocast_the_head_has_casts_too(pencil):
    """Weights cast once for the layers (34) and the head; its new gradient in bfloat16 and in float32."""
    parts = moments(policy(pencil, AUTOCAST), Sharing(), SMALL)["backward of the head"]

    assert parts["weights cast to bfloat16"] == 2 * 34
    assert parts["gradient of the head"] == 10 * (4 + 4 + 2)
    assert parts["head cast to bfloat16"] == 10 * 2


def test_a_smaller_chunk_holds_fewer_logits(pencil):
    parts = moments(policy(pencil, chunk=2), Sharing(), SMALL)["backward of the head"]

    assert parts["logits of a chunk"] == 40


def test_distillation_over_tokens_holds_float32_logits(pencil):
    parts = moments(policy(pencil, fused_head=False), Sharing(), SMALL)["backward of the head"]

    assert parts["logits of a chunk"] == 4 * 5 * (2 + 12)


def test_a_scoring_pass_holds_the_products_of_a_chunk_alone(pencil):
    """6 tokens' last norm, (8 + 4) x 2, and 4 actions x 5 logits of 2 bytes, which is more than the widest layer."""
    role = policy(replace(pencil, ffn=1))

    assert moments(role, Sharing(), SMALL)["scoring"]["activations"] == 6 * 12 * 2 + 4 * 5 * 2


def test_scoring_many_tokens_of_a_teacher_holds_float32_logits(pencil):
    for scaled, each in ((False, 8), (True, 10)):
        role = policy(pencil, fused_head=False, scales_logits=scaled)
        parts = moments(role, Sharing(), SMALL)["scoring"]
        assert parts["activations"] == 6 * 12 * 2 + 4 * 5 * each


def test_a_policy_that_is_not_scored_has_no_such_moment(pencil):
    assert "scoring" not in moments(policy(pencil, scores=False), Sharing(), SMALL)
    assert "scoring" in moments(policy(pencil), Sharing(), SMALL)


def test_at_stage_2_gradients_are_shared_and_go_through_a_bucket(pencil):
    sharing = Sharing(stage=2, ranks=5, reduce_bucket=7)

    assert dict(moments(policy(pencil), sharing, SMALL)["update"]) == {
        "gradients": 40,
        "gradient buckets": 28,
        "flat copy of the gradients": 40,
    }
    twice = moments(policy(pencil), replace(sharing, overlap=True), SMALL)["update"]
    assert twice["gradient buckets"] == 56


def test_stage_3_fetches_weights_up_to_a_bound(pencil):
    def fetched(live):
        sharing = Sharing(stage=3, ranks=5, live_parameters=live)
        return moments(policy(pencil), sharing, SMALL)["backward"]["weights of other ranks"]

    assert fetched(1000) == 2 * 38
    assert fetched(20) == 2 * 20


def test_gradients_stand_beside_activations_only_with_several_micro_batches(shape):
    batch = MicroBatch(tokens=30_000, actions=24_000, several=False)
    role = policy(shape("qwen2.5-0.5b"))

    one = role_memory(role, Sharing(), batch)
    several = role_memory(role, Sharing(), replace(batch, several=True))

    assert several.peak_bytes - one.peak_bytes == 4 * role.shape.parameters


def test_more_tokens_never_need_less(shape):
    role = policy(shape("qwen2.5-0.5b"))
    peaks = [
        role_memory(
            role, Sharing(), MicroBatch(tokens=tokens, actions=tokens // 2, several=True)
        ).peak_bytes
        for tokens in (1_000, 5_000, 20_000, 80_000)
    ]

    assert peaks == sorted(peaks)
    assert peaks[-1] > 3 * peaks[-2]


@pytest.mark.parametrize(
    ("name", "measured_gib"),
    [("qwen2.5-0.5b", 36.0), ("qwen2.5-1.5b", 69.0)],
)
def test_activations_are_those_measured_on_an_h200(shape, name, measured_gib):
    """Forward and backward pass of 16 sequences of 256 + 1024 tokens in bfloat16, no optimizer, measured 2026-11-21.

    The head of that run was not fused: 12 bytes a logit, in chunks that are taken to be of 4096 tokens.
    """
    role = policy(shape(name), fused_head=False, scores=False)
    batch = MicroBatch(tokens=16 * 1280, actions=16 * 1024, several=False)

    memory = role_memory(role, Sharing(), batch)

    predicted = (memory.resident["weights"] + memory.transient_bytes) / GIB
    assert predicted == pytest.approx(measured_gib, rel=0.05)


LAYER = AdaptedLayer(first_norm=True, second_norm=True, attention=True, product=True, own=14)
RANK_1 = AdapterCounts(
    name="lora", trained=31, matrices=31, added=31, largest=3, factors=31, layers=(LAYER,)
)
"""Rank 1 beside every matrix of the pencil-sized model: 5 x 2 + 2 + 3 inputs, 2 x 2 + 3 x 2 + 2 x 3 outputs."""


def test_factors_of_every_matrix_by_hand(pencil):
    """Of two ranks each has half of the inputs of the output and down projections, and of the others' outputs."""
    assert pencil.factor_weights(1) == 31
    assert pencil.factor_weights(4) == 4 * 31
    assert pencil.factor_weights(1, ranks=2) == 10 + 2.5 + 4 + 6


def test_what_a_layer_keeps_under_an_adapter_by_hand(pencil):
    # Norms: 2 x (input 4 + output 2) x 2. Attention and feed-forward part as in full training: 16 + 24. Own and
    # statistics: 14 + 12.
    assert adapted_layer_bytes(pencil, BF16, LAYER) == 24 + 40 + 14 + 12
    # Compiled: norms 2 x (2 + 2) x 2; gate, up and their product, 3 x 3 x 2.
    assert adapted_layer_bytes(pencil, BF16, LAYER, compiled=True) == 16 + 16 + 18 + 14 + 12
    # Nothing is read: inputs of the norms; gate, silu(gate) and up.
    fixed = AdaptedLayer(first_norm=False, second_norm=False, attention=False, product=False, own=0)
    assert adapted_layer_bytes(pencil, BF16, fixed) == 16 + 16 + 18 + 12
    # A trained norm keeps its normalized input too.
    assert adapted_layer_bytes(pencil, BF16, replace(fixed, trained_norms=1)) == 4 + 62


def test_only_the_adapter_takes_16_bytes_more_than_its_weight(pencil):
    memory = role_memory(policy(pencil, adapter=RANK_1), Sharing(), SMALL)

    assert dict(memory.resident) == {
        "weights": 2 * 50 + 2 * 31,
        "float32 copies": 4 * 31,
        "optimizer state": 8 * 31,
    }


def test_a_base_in_4_bits_has_embeddings_and_norms_in_the_runs_type(pencil):
    """34 weights in linear layers, 16 others."""
    adapter = replace(RANK_1, linear_weight_bytes=0.5)

    memory = role_memory(policy(pencil, adapter=adapter), Sharing(), SMALL)

    assert memory.resident["weights"] == 34 * 0.5 + 16 * 2 + 2 * 31


def test_the_heads_weights_have_no_gradient_beside_an_adapter(pencil):
    """As in full training but for the head's gradient, the last norm's normalized input and fixed norms."""
    parts = moments(policy(pencil, adapter=RANK_1), Sharing(), SMALL)["backward of the head"]

    assert dict(parts) == {
        "gradients": 4 * 31,
        "activations": 6 * 90,
        "last norm and hidden states": 6 * (6 + 4) * 2,
        "logits of a chunk": 80,
    }


def test_one_layers_backward_pass_holds_the_gradient_of_one_factor(pencil):
    plain = moments(policy(pencil, adapter=RANK_1), Sharing(), SMALL)
    packed = policy(pencil, adapter=replace(RANK_1, linear_weight_bytes=0.5))

    assert plain["backward"]["gradient of a weight"] == 2 * 3
    assert "gradient of the head" not in plain["backward"]
    for moment in ("backward", "scoring"):
        found = moments(packed, Sharing(), SMALL)[moment]
        assert found["quantized weights as a matrix"] == 2 * 2 * 3


def test_a_head_that_is_trained_beside_an_adapter_has_a_gradient(pencil):
    adapter = replace(RANK_1, trained=41, tables=10, head=10)
    muon = policy(pencil, adapter=adapter, optimizer_bytes=4.0, optimizer_table_bytes=8.0)

    parts = moments(muon, Sharing(), SMALL)["backward of the head"]

    assert parts["gradient of the head"] == (4 + 2) * 10
    assert role_memory(muon, Sharing(), SMALL).resident["optimizer state"] == 4 * 31 + 8 * 10


def test_fixed_weights_are_cast_for_the_backward_pass_and_not_kept_in_others(pencil):
    role = policy(pencil, AUTOCAST, adapter=RANK_1)

    found = moments(role, Sharing(), SMALL)

    assert found["backward"]["weights cast to bfloat16"] == 2 * 34
    assert "weights cast to bfloat16" not in found["scoring"]
    assert "end of the forward pass" not in moments(replace(role, recompute=True), Sharing(), SMALL)


def test_layers_without_a_gradient_keep_nothing(pencil):
    two = replace(pencil, layers=2)
    upper = moments(policy(two, adapter=RANK_1), Sharing(), SMALL)["backward"]
    none = moments(policy(two, adapter=replace(RANK_1, layers=())), Sharing(), SMALL)["backward"]

    assert upper["activations"] == 6 * 90
    assert "activations" not in none


def test_shared_prompts_are_kept_once_beside_an_adapter_too(pencil):
    """As in full training; a projection that keeps no input keeps no array without the repetitions either."""
    shared = replace(SMALL, repeated=2)
    fixed = replace(RANK_1, layers=(replace(LAYER, attention=False),))

    kept, other = (
        moments(policy(pencil, adapter=adapter), Sharing(), shared)["backward"]["activations"]
        for adapter in (RANK_1, fixed)
    )

    assert kept == 4 * 90 + 2 * 16 + 4 * 2 * 2
    assert other == 4 * 90 + 2 * 16


def test_stage_3_shares_the_base_and_the_adapter(pencil):
    sharing = Sharing(stage=3, ranks=5)

    memory = role_memory(policy(pencil, adapter=RANK_1), sharing, SMALL)

    assert memory.resident["weights"] == pytest.approx(2 * (50 + 31) / 5 + 2 * 10)
    assert memory.resident["gradients"] == pytest.approx(4 * 31 / 5)
