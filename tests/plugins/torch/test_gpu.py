"""What only a GPU runs: the varlen kernel, offloading, training in bfloat16 there."""

import numpy as np
import pytest
import torch

from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.packed.shared_starts import SharedLayout, places_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # On Python 3.12 torch's own compiler uses what torch has deprecated.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


@pytest.fixture
def start_on_gpu(plugins):
    def build(spec, **options):
        backend = TorchBackend(TorchBackendConfig(device="cuda", **options))
        backend.setup(spec, plugins)
        return backend

    return build


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("offsets", [[0, 9, 10, 40], [0, 20, 40]])
def test_attention_on_the_gpu_is_that_of_the_cpu(dtype, window, kv_heads, offsets):
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(1, heads, 40, 16, generator=generator).requires_grad_()
        for heads in (4, kv_heads, kv_heads)
    ]
    options = {"scaling": 0.3, "sliding_window": window, "softcap": None}

    def run(device, dtype):
        layout = PackedLayout(offsets, torch.device(device))
        output = layout.attend(0, *(part.to(device, dtype) for part in parts), **options)
        loss = (output.float() * torch.arange(40, device=device).view(1, 40, 1, 1)).sum()
        return [output.float().cpu(), *torch.autograd.grad(loss, parts)]

    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    for actual, expected in zip(run("cuda", dtype), run("cpu", torch.float32), strict=True):
        # Relative to the largest value: gradients are weighted with positions up to 40.
        error = float((actual - expected).abs().max().detach() / expected.abs().max().detach())
        assert error < tolerance


@pytest.mark.parametrize("offsets", [[0, 9, 22, 40], [0, 20, 40]])
def test_attention_with_shared_starts_is_that_of_whole_sequences(offsets):
    starts = [0] + [5] * (len(offsets) - 2)
    places = places_of(np.array(offsets), starts, [0] * len(starts))
    _, firsts = np.unique(places, return_index=True)
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(1, heads, len(firsts), 64, generator=generator)
        .to("cuda", torch.bfloat16)
        .requires_grad_()
        for heads in (4, 2, 2)
    ]
    whole = PackedLayout(offsets, torch.device("cuda"))
    options = {"scaling": 0.3, "sliding_window": None, "softcap": None}
    place, kept = (torch.from_numpy(index).cuda() for index in (places, firsts))

    shared = SharedLayout(whole, places, torch.device("cuda")).attend(0, *parts, **options)
    expected = whole.attend(0, *(part[:, :, place] for part in parts), **options)[:, kept]

    torch.testing.assert_close(shared, expected)
    found, wanted = (
        torch.autograd.grad(output.float().square().sum(), parts) for output in (shared, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.03)])
def test_logprobs_on_the_gpu_are_those_of_the_cpu(
    start, start_on_gpu, make_spec, make_trajectories, models, family, compute, tolerance
):
    trajectories = make_trajectories()
    spec = make_spec(models[family])

    actual = start_on_gpu(spec, compute_dtype=compute).logprobs(trajectories)

    np.testing.assert_allclose(
        actual, start(spec, compute_dtype="float32").logprobs(trajectories), atol=tolerance
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offload_and_reload_change_nothing(
    start_on_gpu, make_spec, make_batch, make_plan, models, dtype
):
    backend, batch = (
        start_on_gpu(make_spec(models["qwen3"], dtype=dtype, ema_decay=0.9)),
        make_batch(),
    )
    backend.train_step(batch, make_plan(batch))
    digest = backend.checksum()
    model, held = backend.module(), torch.cuda.memory_allocated()
    moved = [*model.parameters(), *(t for t in tensors_of(backend) if t.is_cuda)]
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in moved}

    backend.offload()
    assert {tensor.untyped_storage().nbytes() for tensor in moved} == {0}
    # The rest is not the backend's: libraries keep room for their products.
    assert torch.cuda.memory_allocated() <= held - sum(memory.values())
    backend.reload()
    assert torch.cuda.memory_allocated() <= held

    assert backend.checksum() == digest
    assert {p.device.type for p in backend.module().parameters()} == {"cuda"}
    assert {t.device.type for t in tensors_of(backend) if t.ndim} == {"cuda"}
    metrics = backend.train_step(batch, make_plan(batch)).metrics
    assert metrics["train/skipped_updates"].value() == 0
    assert backend.checksum() != digest


def tensors_of(backend):
    updater = backend._updater
    states = [value for state in updater.optimizer.state.values() for value in state.values()]
    return [*states, *updater.ema.values(), *updater.masters.values()]


def test_a_restored_run_goes_on_to_the_bit(
    start_on_gpu, make_spec, make_batch, make_plan, models, tmp_path
):
    digests = []
    batch = make_batch()
    straight = start_on_gpu(make_spec(models["qwen3"]), compute_dtype="float32")
    straight.train_step(batch, make_plan(batch))
    straight.save(tmp_path)
    resumed = start_on_gpu(make_spec(models["qwen3"]), compute_dtype="float32")
    resumed.load(tmp_path)
    for backend in (straight, resumed):
        backend.train_step(batch, make_plan(batch))
        digests.append(backend.checksum())

    assert digests[0] == digests[1]


@pytest.mark.parametrize("options", [{}, {"compile": True}, {"gradient_checkpointing": True}])
def test_deterministic_gradients_are_the_same_in_each_run_to_the_bit(
    start_on_gpu, make_spec, make_batch, make_plan, models, options
):
    digests = set()
    batch = make_batch(64)
    for _ in range(4):
        backend = start_on_gpu(
            make_spec(models["qwen3"]), compute_dtype="bfloat16", deterministic=True, **options
        )
        for _ in range(2):
            backend.train_step(batch, make_plan(batch))
        digests.add(backend.checksum())
        backend.close()

    assert len(digests) == 1
