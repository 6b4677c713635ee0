"""Nothing is left behind and no call hangs, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

pytestmark = [pytest.mark.scale, pytest.mark.slow]

SCRIPT = """
import asyncio, json, os, signal, sys
import psutil
from transformers import AutoModelForCausalLM
from rlhf_core import RolloutError
from rlhf_core.contracts import EngineSpec, GenerationRequest, SamplingParams, Uid
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine


class Source:
    def __init__(self, state):
        self.state = state

    def module(self):
        return None

    def buckets(self):
        yield self.state


async def main(folder, victim, shards):
    state = dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    args = {"tensor_parallel_size": int(shards)}
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1, args=args))
    spec = EngineSpec(
        model_path=folder, dtype="float32", max_length=1000, max_concurrency=8, eos_token_ids=()
    )
    await engine.start(spec, Source(state))
    below = psutil.Process().children(recursive=True)
    print(json.dumps([child.pid for child in below]), flush=True)
    maps = [m.path for p in (psutil.Process(), *below) for m in p.memory_maps()]
    print(json.dumps([path for path in set(maps) if path.startswith("/dev/shm/")]), flush=True)
    if victim == "family":
        for child in below:  # Python's tracker of shared memory is one of them
            if "EngineCore" not in child.name() and "Worker" not in child.name():
                child.kill()
    if victim in ("caller", "family"):
        os.kill(os.getpid(), signal.SIGKILL)
    request = GenerationRequest(
        uid=Uid(0, 7),
        prompt_ids=(5, 9),
        seeds=(1, 2),
        sampling=SamplingParams(max_new_tokens=990),
    )
    core = next(child for child in below if "EngineCore" in child.name())
    if victim == "update":
        core.suspend()  # so that it has the call, and does not answer it
        call = asyncio.ensure_future(engine.update_weights(1, Source(state)))
    else:
        call = asyncio.ensure_future(engine.generate(request))
    await asyncio.sleep(0.1)
    if victim == "update":
        core.kill()
    elif victim == "nobody":
        await engine.close()
    else:
        next(child for child in below if victim in child.name()).kill()
    try:
        async with asyncio.timeout(300):
            await call
    except RolloutError as error:
        print(json.dumps(str(error)), flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("victim", "shards"),
    [
        *(
            (victim, 1)
            for victim in ("nobody", "caller", "family", "EngineCore", "Worker", "update")
        ),
        # Workers of two shards share memory of vLLM's own, which has no tracker.
        *((victim, 2) for victim in ("nobody", "caller")),
    ],
)
def test_a_call_in_flight_fails_and_nothing_is_left(
    folder, tmp_path, tmp_path_factory, victim, shards
):
    pytest.importorskip("vllm")
    temporary = tmp_path_factory.getbasetemp() / f"{victim}-{shards}"
    temporary.mkdir()
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(folder), victim, str(shards)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=2 * HANG_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
    )

    killed = victim in ("caller", "family")
    assert done.returncode == (-signal.SIGKILL if killed else 0)
    said = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in '["']
    pids, files = said[:2]
    assert len(pids) >= 2
    assert files
    assert any("cpushm" in file for file in files) == (shards > 1)
    if victim == "update":
        assert "vLLM's core died before it answered" in said[2]
    elif not killed:
        assert "request 0.7" in said[2]
    if victim == "nobody":
        assert "the engine was closed" in said[2]
    give_up = time.monotonic() + HANG_S
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not left
    # Of these processes only: tests beside this one have files, too, and kill processes that had some.
    while (there := [file for file in files if Path(file).exists()]) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not there
    # A cache of compiled code is kept on purpose.
    left = set(temporary.glob("*")) - set(temporary.glob("torchinductor_*"))
    while any(path.exists() for path in left) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not [path for path in left if path.exists()]


def is_running(pid):
    """False also for a process that ended and was not collected."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
