"""Ranks that share matrices or sequences, and engines of several GPUs: by hand, and as flags of the command."""

from dataclasses import replace

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_plan.command import main as plan
from rlhf_plugin_plan.memory.engine_memory import stage_parameters
from rlhf_plugin_plan.memory.role import MicroBatch, Role
from rlhf_plugin_plan.memory.sharing import Sharing
from rlhf_plugin_plan.memory.training_memory import moments, role_memory
from rlhf_plugin_plan.model.activations import Precision, layer_bytes
from rlhf_plugin_plan.model.shapes import ModelShape
from rlhf_plugin_plan.seconds.work import (
    head_exchange_bytes,
    matrix_exchange_bytes,
    slice_exchange_bytes,
)
from rlhf_testing.errors import has_code

BF16 = Precision(parameters="bfloat16", compute="bfloat16")
PARAMETERS_7B = 7_615_616_512
CLUSTER = [
    *("--runtime", "ray", "--backend", "deepspeed", "--gpu", "h200"),
    *("--runtime.ray.ranks.policy", "8", "--runtime.ray.engines", "8"),
]
EACH = ["--backend.deepspeed.share_prompts", "false"]
LENGTHS = ["--prompt-tokens", "256", "--response-tokens", "1024"]


@pytest.fixture
def two_heads():
    """D 4, two layers, two heads of 2, F 6, V 5, tied: Q = K = 4."""
    return ModelShape(
        hidden=4, layers=2, heads=2, kv_heads=2, head_dim=2, ffn=6, vocab=5, tied=True
    )


@pytest.fixture
def engine_of(tmp_path):
    """Flags that set arguments of vLLM."""

    def write(**args):
        path = tmp_path / "engine.toml"
        lines = [f"{name} = {value}" for name, value in args.items()]
        path.write_text("\n".join(["[engine.vllm.args]", *lines]))
        return ["-c", str(path)]

    return write


def test_a_part_has_half_of_the_matrices_and_all_else(two_heads):
    """Layers: 2 x (4 x 16 + 3 x 4 x 6) = 272 weights; norms 2 x 2 x 4 + 4 = 20; table 5 x 4 = 20."""
    assert two_heads.parameters == 272 + 20 + 20
    assert two_heads.part(2).parameters == 136 + 20 + 20
    assert two_heads.part(1) == two_heads


def test_a_head_of_its_own_is_shared_by_rows(two_heads):
    """5 rows on 2 ranks are 3 and 2."""
    untied = replace(two_heads, tied=False)

    assert untied.part(2).parameters == 136 + 20 + 20 + 3 * 4
    assert untied.part(2).vocab == 5


def test_zero_shares_a_part_among_the_ranks_that_have_the_same(two_heads):
    """Four ranks of which two share each matrix: ZeRO shares the 176 parameters of a part among two."""
    role = Role(name="policy", shape=two_heads.part(2), precision=BF16, trained=True, has_head=True)
    batch = MicroBatch(tokens=6, actions=4, several=True)

    memory = role_memory(role, Sharing(stage=1, ranks=2), batch)

    assert dict(memory.resident) == {
        "weights": 2 * 176,
        "float32 copies": 4 * 88,
        "optimizer state": 8 * 88,
    }


def test_float32_weights_are_the_only_ones_of_fsdp(two_heads):
    """312 parameters on two ranks, 24 of them in no layer; these and the two layers are whole while a pass needs them.
    Gradients are dropped after each update. At the end of a micro-batch those 24 are there in both types."""
    role = Role(name="policy", shape=two_heads, precision=BF16, trained=True, has_head=True)
    sharing = Sharing(stage=3, ranks=2, live_parameters=2 * 144, layerwise=True)
    batch = MicroBatch(tokens=6, actions=4, several=True)

    memory, found = role_memory(role, sharing, batch), moments(role, sharing, batch)

    assert dict(memory.resident) == {"weights": 4 * 156, "optimizer state": 8 * 156}
    assert memory.transient["weights of other ranks"] == 2 * (2 * 144 + 24)
    assert memory.transient["gradients"] == 4 * 156
    assert found["end of a micro-batch"]["gradients on their way"] == (2 + 4) * 24


def test_norms_keep_as_much_on_every_rank_and_the_rest_is_shared(two_heads):
    """Norms 2 x (4 + 2 + 2) x 4 and 8 bytes of theirs; q, k, v, out 4 each, F 6 four times, a softmax of 2 heads."""
    assert layer_bytes(two_heads, BF16) == 64 + 8 + 2 * 16 + 2 * 24 + 4 * 2
    assert layer_bytes(two_heads.part(2), BF16) == 64 + 8 + (2 * 16 + 2 * 24 + 4 * 2) // 2


def test_what_ranks_of_a_matrix_send_by_hand(pencil):
    """6 tokens, D 2, one layer: two sums of 12 numbers, each sent once by each of two ranks, 2 bytes."""
    assert matrix_exchange_bytes(pencil, 6, 2, 2) == 2 * 12 * 2
    assert matrix_exchange_bytes(pencil, 6, 1, 2) == 0
    # Four ranks: 2 x 3/4 of an array instead of 2 x 1/2.
    assert matrix_exchange_bytes(pencil, 6, 4, 2) == 2 * 12 * 2 * 1.5


def test_what_ranks_of_a_head_send_by_hand(pencil):
    """4 tokens, 5 logits, of which half come from the other rank; a tied head is whole."""
    assert head_exchange_bytes(replace(pencil, tied=False), 4, 2, 2) == 4 * 5 * 2 / 2
    assert head_exchange_bytes(pencil, 4, 2, 2) == 0


def test_what_ranks_of_a_sequence_send_by_hand(pencil):
    """6 tokens, query and output 2 wide, key and value copied to 2 heads of 2: half of 12 numbers a token leaves."""
    assert slice_exchange_bytes(pencil, 6, 2, 2) == 6 * (2 + 2 + 4 + 4) / 2 * 2
    assert slice_exchange_bytes(pencil, 6, 1, 2) == 0


def test_the_largest_stage_of_a_pipeline_by_hand(two_heads):
    """136 weights and two norms of 4 a layer; 3 layers on 2 stages are 2 and 1, with one table each."""
    three = replace(two_heads, layers=3)

    assert stage_parameters(three, 1) == three.parameters == 3 * 144 + 4 + 20
    assert stage_parameters(three, 2) == 2 * 144 + 4 + 20
    assert stage_parameters(replace(three, tied=False), 2) == 2 * 144 + 4 + 20


def test_ranks_that_share_matrices_are_planned(run):
    """7B on 8 ranks, 4 a matrix: layers and head by 4, the table and 57 norms whole; ZeRO-2 halves the states."""
    layers, table, norms = 6_525_288_448, 152_064 * 3584, 57 * 3584
    bias = 28 * (3584 + 2 * 512)
    assert layers + bias + norms + 2 * table == PARAMETERS_7B
    part = (layers + bias) / 4 + norms + table * 5 / 4

    _, result = run(
        *CLUSTER, *LENGTHS, "--backend.deepspeed.tensor_parallel", "4", model="qwen2.5-7b"
    )

    policy = result["gpus"][0]["processes"][0]["roles"]["policy"]
    assert policy["resident_gib"] == pytest.approx((2 + 12 / 2) * part / 2**30)
    phases = {phase["name"]: phase["limit_s"] for phase in result["phases"]}
    tokens = 256 * 1280 * 4 / 8
    sums = 2 * 4 * 28 * 3584 * tokens * 3 / 4
    logits = 2 * 152_064 * (256 * 1024 * 4 / 8) * 3 / 4
    assert phases["exchange policy layers"] == pytest.approx(2 * (sums + logits) / 400e9)


def test_sharing_matrices_takes_as_long_and_less_memory(run):
    """The same matmuls on as many GPUs; the exchange comes on top."""
    flags = [*CLUSTER, *LENGTHS, *EACH]
    _, plain = run(*flags, model="qwen2.5-7b")
    _, shared = run(*flags, "--backend.deepspeed.tensor_parallel", "2", model="qwen2.5-7b")

    def of(result):
        phases = {phase["name"]: phase["limit_s"] for phase in result["phases"]}
        return phases["train policy"], result["gpus"][0]["processes"][0]["torch_peak_gib"]

    assert of(shared)[0] == pytest.approx(of(plain)[0])
    assert of(shared)[1] < of(plain)[1]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("tensor_parallel", "8 ranks (2 share every matrix)"),
        ("sequence_parallel", "8 ranks (2 share every sequence)"),
    ],
)
def test_the_report_says_which_ranks_compute_together(
    capsys, tmp_path, config_file, config_text, option, said
):
    path = tmp_path / "run.toml"
    path.write_text(config_text)
    file = str(config_file("qwen2.5-1.5b"))

    plan(
        [
            *("-c", str(path), "--model-config", file),
            *CLUSTER,
            *(f"--backend.deepspeed.{option}", "2"),
        ]
    )

    assert said in capsys.readouterr().out


def test_a_tied_head_is_computed_by_every_rank(run):
    """1.5B: all matmuls are shared but the head's, which both ranks of a pair do."""
    _, plain = run(*CLUSTER, *LENGTHS, *EACH)
    _, shared = run(*CLUSTER, *LENGTHS, *EACH, "--backend.deepspeed.tensor_parallel", "2")

    seconds = [
        next(phase["limit_s"] for phase in result["phases"] if phase["name"] == "train policy")
        for result in (plain, shared)
    ]
    head = 3 * 2 * 151_936 * 1536 * 256 * 1024 / (790e12 * 8)
    assert seconds[1] - seconds[0] == pytest.approx(head)


@pytest.mark.parametrize(("ranks", "prompts", "computing"), [(1, 32, 1), (8, 32, 1), (8, 33, 8)])
def test_each_rank_that_has_samples_of_a_prompt_computes_it(run, ranks, prompts, computing):
    """Of each prompt's 8 x 256 tokens 256 are computed, and as many for each rank where groups would fill one more."""
    flags = [
        *CLUSTER[:4],
        *("--runtime.ray.ranks.policy", f"{ranks}", "--runtime.ray.engines", "1"),
        *("--rollout.batch_size", f"{prompts}"),
    ]

    seconds = []
    for shares in ("false", "true"):
        _, result = run(*flags, *LENGTHS, "--backend.deepspeed.share_prompts", shares)
        phases = {phase["name"]: phase["limit_s"] for phase in result["phases"]}
        seconds.append(phases["train policy"])

    matrices = 1_543_714_304 - 151_936 * 1536
    saved = 6 * matrices * 256 * (8 - computing) * prompts / (790e12 * ranks)
    assert seconds[0] - seconds[1] == pytest.approx(saved, rel=1e-3)


def test_a_reference_is_whole_on_every_rank(run):
    flags = [*CLUSTER, "--algo.kl.coef", "0.01", "--runtime.ray.ranks.reference", "8"]
    _, result = run(*flags, "--backend.deepspeed.tensor_parallel", "2")

    roles = {
        name: role
        for process in result["gpus"][0]["processes"]
        for name, role in process["roles"].items()
    }
    assert roles["reference"]["resident_gib"] == pytest.approx(2 * 1_543_714_304 / 2**30)


def test_slices_of_sequences_are_exchanged_in_every_pass(run):
    """28 layers, 12 heads and 2 key heads of 128 on 4 ranks: keys copied to 4 heads; two passes of training."""
    _, result = run(*CLUSTER, *LENGTHS, "--backend.deepspeed.sequence_parallel", "4")

    phases = {phase["name"]: phase["limit_s"] for phase in result["phases"]}
    numbers = 28 * 2 * (1536 + 512) * (256 * 1280 / 8) * 3 / 4
    assert phases["exchange policy layers"] == pytest.approx(2 * 2 * numbers / 400e9)


def test_recomputed_layers_are_exchanged_once_more(run):
    flags = [*CLUSTER, *LENGTHS, "--backend.deepspeed.sequence_parallel", "4"]
    _, plain = run(*flags)
    _, again = run(*flags, "--backend.deepspeed.gradient_checkpointing", "true")

    plain, again = (
        next(p["limit_s"] for p in result["phases"] if p["name"] == "exchange policy layers")
        for result in (plain, again)
    )
    assert again == pytest.approx(1.5 * plain)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("3", "tensor_parallel is 3, which does not divide the 8 ranks of the policy"),
        ("8", "tensor_parallel is 8, which does not divide the 12 attention heads"),
        ("4", "tensor_parallel is 4, which does not divide the 2 key heads"),
    ],
)
def test_ranks_that_cannot_share_matrices_are_refused(run, size, message):
    with pytest.raises(ConfigError, match=message, check=has_code("plan/does-not-divide")):
        run(*CLUSTER, "--backend.deepspeed.tensor_parallel", size)


def test_copies_of_a_model_in_one_engine_share_the_requests(run, engine_of):
    """Two engines of 4 copies write as fast as eight engines, and take as many GPUs."""
    apart = ["--runtime.ray.colocate", "policy", "engine"]
    _, eight = run(*CLUSTER, *LENGTHS, *apart)
    copies = [*engine_of(data_parallel_size=4), "--runtime.ray.gpus_per.engine", "4"]
    _, two = run(*copies, *CLUSTER[:-1], "2", *LENGTHS, *apart)

    assert eight["num_gpus"] == two["num_gpus"] == 16
    assert eight["engine"]["kv_tokens"] == two["engine"]["kv_tokens"]
    decode = [
        next(phase["limit_s"] for phase in result["phases"] if phase["name"] == "decode")
        for result in (eight, two)
    ]
    assert decode[0] == pytest.approx(decode[1])


def test_an_engine_that_shares_matrices_exchanges_hidden_states(run, engine_of):
    """1.5B on 2 GPUs: 32 prompts of 256 and 1023 steps of 256 sequences on one engine."""
    flags = [
        *engine_of(tensor_parallel_size=2),
        *CLUSTER[:-1],
        "1",
        *LENGTHS,
        *("--runtime.ray.colocate", "policy", "engine", "--runtime.ray.gpus_per.engine", "2"),
    ]
    _, result = run(*flags)

    phases = {phase["name"]: phase["limit_s"] for phase in result["phases"]}
    tokens = 32 * 256 + 1023 * 256
    assert phases["exchange engine"] == pytest.approx(4 * 28 * 1536 * tokens * 2 / 2 / 400e9)


def test_smaller_passes_of_the_engine_need_less(run, engine_of):
    """A token's gate, up and product of 8960 and four hidden states of 1536, 2 bytes each."""
    flags = ["--engine.vllm.kv_cache_gib", "4"]
    _, usual = run(*flags, *engine_of(max_num_seqs=64))
    _, small = run(*flags, *engine_of(max_num_seqs=64, max_num_batched_tokens=4096))

    parts = [result["gpus"][0]["processes"][1]["parts_gib"] for result in (usual, small)]
    saved = parts[0]["engine: activations"] - parts[1]["engine: activations"]
    assert saved == pytest.approx(4096 * 2 * (3 * 8960 + 4 * 1536) / 2**30)


def test_the_peak_of_tensors_has_no_graphs_where_the_embedded_engine_has_a_process_of_its_own(run):
    """Torch counts what graphs hold as allocated only while they are captured."""
    apart = ("--runtime", "ray", "--engine", "embedded", "--runtime.ray.colocate", "engine")

    _, result = run(*apart)

    processes = [process for gpu in result["gpus"] for process in gpu["processes"]]
    (engine,) = (process for process in processes if process["name"] == "engine")
    left_out = ("engine: CUDA graphs", "fragmentation", "CUDA context")
    parts = engine["parts_gib"]
    assert parts["engine: CUDA graphs"] > 0
    tensors = sum(size for name, size in parts.items() if name not in left_out)
    assert engine["torch_peak_gib"] == pytest.approx(tensors)
    assert parts["fragmentation"] == pytest.approx(0.03 * tensors)
