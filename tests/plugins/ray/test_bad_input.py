"""What cannot work ends with a message that names it and the fix, in time, with an exit code, and leaves nothing."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from rlhf_core import RLHFError
from rlhf_testing.errors import has_code

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("ray")

WELL_KNOWN_PORTS = (6379, 6380, 8076, 8077, 8265, 10001, 10002, 44217, 52365, 29500)
"""Those that Ray takes if nobody says otherwise, and torch's."""
DEEPSPEED = ["--backend", "deepspeed"]


@pytest.fixture
def refused(start):
    """The message of a run that ends by itself with the given exit code before its first step."""

    def run(code, *flags, **options):
        started = start("--steps", "2", *flags, **options)
        assert started.end() == code, started.output
        assert "Traceback" not in started.output
        assert not (started.folder / "run" / "metrics.jsonl").exists() or not (
            (started.folder / "run" / "metrics.jsonl").read_text()
        )
        return " ".join(started.output.split())

    return run


def test_a_placement_that_cannot_be_met(refused):
    told = refused(2, "--runtime.ray.cpus", "2", "--runtime.ray.ranks.policy", "3", *DEEPSPEED)

    assert "needs 3 CPUs, the Ray cluster has 2" in told
    assert "Lower runtime.ray.ranks" in told


def test_gpus_that_the_cluster_has_not(refused):
    told = refused(2, "--runtime.ray.gpus_per.policy", "1", "--runtime.ray.gpus_per.engine", "1")

    assert "needs 1 GPUs, the Ray cluster has 0" in told
    assert "gpus_per" in told


@pytest.mark.parametrize(
    "split", ["sequence_parallel", pytest.param("tensor_parallel", marks=pytest.mark.matrix)]
)
def test_ranks_that_do_not_divide(refused, split):
    pytest.importorskip("deepspeed")
    three = ["--runtime.ray.ranks.policy", "3", "--runtime.ray.cpus", "3"]

    told = refused(2, *DEEPSPEED, f"--backend.deepspeed.{split}", "2", *three)

    assert "policy rank" in told
    assert f"{split} 2 with 3 ranks" in told
    assert "must divide the number of ranks" in told


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("max_num_batched_tokenz", "64", "did you mean max_num_batched_tokens"),
        ("tensor_parallel_size", "3", "tensor parallel size"),
    ],
)
def test_engine_arguments_that_vllm_rejects(refused, argument, value, text):
    pytest.importorskip("vllm")

    told = refused(2, "--engine", "vllm", f"--engine.vllm.args.{argument}", value)

    assert "engine 0 (pid" in told
    assert text in told


def test_a_reward_server_that_cannot_be_reached(refused):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/score"
        server = ["--reward", "http", "--reward.http.urls", url, "--reward.http.deadline_s", "3"]

        told = refused(1, *server, reward=None)

    assert "no reward server can be reached (tried for deadline_s = 3)" in told
    assert url in told


def test_a_cluster_that_is_not_there(refused):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"

        told = refused(2, "--runtime.ray.address", address)

    assert f"could not connect to the Ray cluster '{address}'" in told


def test_ports_that_are_taken_do_not_matter(start):
    """Ray's servers take free ones, and so do the ranks."""
    with ExitStack() as taken:
        for port in WELL_KNOWN_PORTS:
            listener = taken.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError:
                continue  # somebody else has it
            listener.listen()

        run = start("--steps", "1")

        assert run.end() == 0, run.output


def test_a_port_of_the_ranks_that_is_taken_all_the_same_is_named(placed, spec):
    async def play():
        async with placed(spec(backend="crowded")):
            pass

    with pytest.raises(
        RLHFError,
        match=r"policy rank 0 .*: port \d+ of .* was taken by another",
        check=has_code("ranks/port-taken"),
    ):
        asyncio.run(play())
