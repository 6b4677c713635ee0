"""A tiny model behind vLLM, started once: that takes half a minute on a CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.deadlines import HANG_S

from rlhf_core.contracts import EngineSpec, GenerationRequest, SamplingParams, Uid
from rlhf_testing.tiny import write_tiny_model
from rlhf_weights import SendingLink, plan_weights

from .masked_reference import GPU, GPU_SHAPE

EOS = 2
WARNINGS_OF_VLLM = ("DeprecationWarning", "FutureWarning", "UserWarning")
"""Of its modules, and of what they import."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that run vLLM see its warnings without failing of them."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("scale"):
            for name in WARNINGS_OF_VLLM:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))


class Source:
    """A training backend in another process, as far as an engine can see."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def module(self) -> None:
        return None

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        for name, tensor in self.state.items():
            yield {name: tensor}


@pytest.fixture(scope="session")
def source_of() -> type[Source]:
    return Source


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("vllm") / "model", initializer_range=0.3)


@pytest.fixture(scope="session")
def plain(folder: Path):
    """The same model as Transformers runs it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def state(plain) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in plain.state_dict().items()}


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop that the engine lives in."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def spec(folder: Path) -> EngineSpec:
    return EngineSpec(
        model_path=str(folder),
        dtype="float32",
        max_length=1000,
        max_concurrency=64,
        eos_token_ids=(EOS,),
        sleeps=True,
    )


@pytest.fixture(scope="session")
def shared_engine(loop, spec: EngineSpec, plain):
    pytest.importorskip("vllm")
    from rlhf_plugin_vllm.config import VllmEngineConfig
    from rlhf_plugin_vllm.engine import VllmEngine

    # Level 1, so that it wakes without an update too: test_sleeping.py has level 2.
    config = VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1, sleep_level=1)
    engine = VllmEngine(config)
    loop.run_until_complete(engine.start(spec, Source(dict(plain.state_dict()))))
    yield engine
    loop.run_until_complete(engine.close())


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A tokenizer with one token for each byte, which llguidance reads."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ("<pad>", "<bos>", "<eos>")
    letters = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory, byte_tokenizer):
    """A model with a token for each byte, as Transformers runs it, and its folder."""
    from transformers import AutoModelForCausalLM

    shape = GPU_SHAPE if GPU else {"initializer_range": 0.3}
    folder = write_tiny_model(tmp_path_factory.mktemp("bytes") / "model", **shape)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.resize_token_embeddings(len(byte_tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module", params=[1, 2] if GPU else [1])
def byte_engine(loop, spec, byte_model, source_of, request):
    """An engine of each of vLLM's model runners: on a CPU it has the first alone."""
    pytest.importorskip("vllm")
    from rlhf_plugin_vllm.config import VllmEngineConfig
    from rlhf_plugin_vllm.engine import VllmEngine

    folder, model = byte_model
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))
    own = replace(spec, model_path=str(folder))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_USE_V2_MODEL_RUNNER", str(request.param - 1))
        loop.run_until_complete(engine.start(own, source_of(dict(model.state_dict()))))
        yield engine
        loop.run_until_complete(engine.close())


@pytest.fixture
def engine(shared_engine, loop, plain):
    """The engine, serving the plain model's weights as version 0."""
    yield shared_engine
    loop.run_until_complete(shared_engine.update_weights(0, Source(dict(plain.state_dict()))))


@pytest.fixture
def run(loop) -> Callable:
    """Run a coroutine where the engine lives."""
    return loop.run_until_complete


@pytest.fixture
def link_to(run) -> Iterator[Callable]:
    """Make a sender of the shapes of some weights, which an engine's workers have joined, by path."""
    made = []

    async def join(engine, state, path: str, bucket_bytes: int = 1 << 18) -> SendingLink:
        places = await engine.receivers()
        sender = SendingLink(
            "test",
            plan=plan_weights([state], bucket_bytes),
            path=path,
            num_receivers=len(places),
            device=torch.device("cpu"),
            host="127.0.0.1",
            timeout_s=HANG_S,
        )
        made.append(sender)
        await asyncio.gather(asyncio.to_thread(sender.connect), engine.join(sender.invitation))
        return sender

    yield lambda *arguments: run(join(*arguments))
    for sender in made:
        sender.close()


@pytest.fixture(scope="session")
def sync() -> Callable:
    """Coroutine: what a trainer's and an engine's end do in one update by a link."""

    async def send(sender: SendingLink, state: dict[str, torch.Tensor], version: int) -> None:
        await sender.start(version)
        for name, tensor in state.items():
            await sender.put(name, tensor)
        await sender.finish()

    async def both(sender, engine, state, version, *, return_exceptions=False):
        return await asyncio.gather(
            send(sender, state, version),
            engine.receive_weights(version),
            return_exceptions=return_exceptions,
        )

    return both


@pytest.fixture
def make_request() -> Callable[..., GenerationRequest]:
    def make(
        prompt: tuple[int, ...], *, seeds: tuple[int, ...] = (1,), number: int = 0, **params: object
    ) -> GenerationRequest:
        return GenerationRequest(
            uid=Uid(0, number),
            prompt_ids=prompt,
            seeds=seeds,
            sampling=SamplingParams(**{"max_new_tokens": 32, **params}),
        )

    return make
