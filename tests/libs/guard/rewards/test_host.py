import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.deadlines import HANG_S, PATIENT_S

from rlhf_core import RewardError
from rlhf_core.problem import ProblemKind
from rlhf_guard.rewards import host as host_module
from rlhf_guard.rewards.host import RewardHost, WorkerThread
from rlhf_guard.rewards.process import SAMPLES_AT_ONCE, WorkerProcess
from rlhf_testing.errors import has_code

pytestmark = pytest.mark.usefixtures("no_process_left")


def score(selection, requests, **options):
    async def all_of_it():
        host = RewardHost(selection)
        await host.start()
        try:
            return await host.score(requests, **options)
        finally:
            await host.close()

    return asyncio.run(all_of_it())


def hurry(monkeypatch, worker):
    whole = worker.score

    async def hurried(self, requests, limit_s):
        guilty = any(request.row.get("bad") for request in requests)
        return await whole(self, requests, 1.0 if guilty else limit_s)

    monkeypatch.setattr(worker, "score", hurried)


@pytest.mark.parametrize(
    ("behavior", "isolate", "kind", "text"),
    [
        pytest.param(
            *("sleeps", True, ProblemKind.TIMED_OUT),
            "and was stopped, alone, after its batch did not",
            marks=pytest.mark.slow,
        ),
        ("awaits_forever", True, ProblemKind.TIMED_OUT, "was stopped"),
        ("awaits_forever", False, ProblemKind.TIMED_OUT, "was abandoned"),
        ("exits", True, ProblemKind.DIED, "ended its process (exit code 7)"),
        ("exits_in_a_task", True, ProblemKind.DIED, "exit code 3"),
        ("exits_in_a_task", False, ProblemKind.RAISED, "raised SystemExit: 3"),
    ],
)
def test_only_the_guilty_sample_has_no_score(
    probe, requests_for, monkeypatch, behavior, isolate, kind, text
):
    # Calls that do hang have a second, and all others the time that only a hang takes.
    if kind is ProblemKind.TIMED_OUT:
        hurry(monkeypatch, WorkerProcess if isolate else WorkerThread)
    requests = requests_for([{}, {}, {"bad": True}, {}, {}])

    outcomes = score(probe(behavior, isolate=isolate, timeout_s=PATIENT_S), requests)

    assert [one.reward for one in outcomes] == [0.0, 1.0, None, 3.0, 4.0]
    assert outcomes[2].problem.kind is kind
    assert text in outcomes[2].problem.text


@pytest.mark.parametrize(
    "text", ["noise\n", "[]\n", '{"call": 2}\n', '{"call": 2, "problem": {}}\n', "[" * 9999 + "\n"]
)
def test_a_reward_that_writes_to_its_own_channel_has_no_score_for_that_sample(
    probe, requests_for, text
):
    """Its process is stopped like one that died, and ``on_error`` decides."""
    requests = requests_for([{}, {"bad": text}, {}])

    outcomes = score(probe("writes_to_its_channel"), requests)

    assert [one.reward for one in outcomes] == [0.0, None, 2.0]
    assert outcomes[1].problem.kind is ProblemKind.DIED
    assert "sent an answer that cannot be read" in outcomes[1].problem.text


def test_the_last_words_of_a_dead_process_are_kept(probe, requests_for):
    (outcome,) = score(probe("exits"), requests_for([{"bad": True}]))

    assert outcome.problem.where == ("printed: last words",)


def test_a_batch_that_hangs_costs_no_more_than_its_time_and_the_restarts(
    probe, requests_for, monkeypatch
):
    """Every sample hangs, and every call takes a hundredth of a second more than its share of the one second."""
    now = 0.0

    class Hanging(WorkerThread):
        async def score(self, requests, limit_s):
            nonlocal now
            now += limit_s + 0.01
            return await super().score(requests, 0.001)

    monkeypatch.setattr(host_module, "WorkerThread", Hanging)
    monkeypatch.setattr(host_module, "time", SimpleNamespace(monotonic=lambda: now))

    outcomes = score(
        probe("awaits_forever", timeout_s=1.0, isolate=False), requests_for([{"bad": True}] * 40)
    )

    # The batch leaves 0.24 s, and each sample three quarters of what it finds, less 0.01 s: the seventh the last.
    kinds = [one.problem.kind for one in outcomes]
    assert kinds == [ProblemKind.TIMED_OUT] * 7 + [ProblemKind.NOT_REACHED] * 33
    assert now < 1.0 + 0.01


def test_restarts_are_bounded(probe, requests_for, monkeypatch):
    monkeypatch.setattr(host_module, "MAX_ENDED", 2)

    outcomes = score(probe("exits"), requests_for([{"bad": True}] * 4))

    # One process ended by the batch, one by the first sample.
    assert [one.problem.kind for one in outcomes] == [ProblemKind.DIED] + [
        ProblemKind.NOT_REACHED
    ] * 3
    assert "then 2 processes had ended" in outcomes[1].problem.text


def test_stopping_at_the_first_problem_asks_for_no_more(probe, requests_for):
    outcomes = score(
        probe("raises", isolate=False), requests_for([{}, {"bad": True}, {}]), stop_at_problem=True
    )

    kinds = [one.problem and one.problem.kind for one in outcomes]
    assert kinds == [None, ProblemKind.RAISED, ProblemKind.NOT_REACHED]


def test_a_large_batch_is_one_call_of_the_reward_however_it_is_sent(probe, requests_for):
    requests = requests_for([{}] * (3 * SAMPLES_AT_ONCE + 1))

    outcomes = score(probe("counts_samples"), requests)

    assert {one.reward for one in outcomes} == {len(requests)}


def test_a_call_that_cannot_be_sent_as_a_whole_is_not_scored_with_the_next_one(probe, requests_for):
    sent = [{}] * SAMPLES_AT_ONCE

    async def two_calls():
        host = RewardHost(probe("counts_samples"))
        await host.start()
        try:
            with pytest.raises(
                RewardError,
                match="column 'x' of its row holds a object",
                check=has_code("reward/unsendable"),
            ):
                await host.score(requests_for([*sent, {"x": object()}]))
            return await host.score(requests_for([{}, {}]))
        finally:
            await host.close()

    assert [one.reward for one in asyncio.run(two_calls())] == [2.0, 2.0]


class MadeWhenRead(list):
    """Requests that are made in slices; one of them may fail."""

    def __init__(self, requests, fails_at=None):
        super().__init__(requests)
        self.fails_at = fails_at
        self.slices = []

    def __getitem__(self, index):
        if isinstance(index, slice):
            self.slices.append((index.start, index.stop))
            if index.start == self.fails_at:
                raise ValueError("no text for token 7")
        return super().__getitem__(index)


def test_requests_are_made_as_they_are_sent_and_one_that_cannot_be_made_is_no_fault_of_the_worker(
    probe, requests_for
):
    requests = requests_for([{}] * (2 * SAMPLES_AT_ONCE + 1))
    sound, failing = MadeWhenRead(requests), MadeWhenRead(requests, fails_at=SAMPLES_AT_ONCE)

    async def all_of_it():
        host = RewardHost(probe())
        await host.start()
        try:
            first = await host.score(requests[:1])
            with pytest.raises(ValueError, match="no text for token 7"):
                await host.score(failing)
            return first + await host.score(sound)
        finally:
            await host.close()

    outcomes = asyncio.run(all_of_it())

    assert [one.reward for one in outcomes] == [0.0, *range(2 * SAMPLES_AT_ONCE + 1)]
    assert len({one.metrics["pid"] for one in outcomes}) == 1
    end = 3 * SAMPLES_AT_ONCE
    assert sound.slices == [
        (start, start + SAMPLES_AT_ONCE) for start in range(0, end, SAMPLES_AT_ONCE)
    ]


def test_a_killed_worker_is_replaced(probe, requests_for):
    async def kill_and_score():
        host = RewardHost(probe())
        await host.start()
        try:
            (first,) = await host.score(requests_for([{}]))
            os.kill(int(first.metrics["pid"]), signal.SIGKILL)
            # The batch during which the death is noticed may have no score.
            await host.score(requests_for([{}]))
            return first, (await host.score(requests_for([{}])))[0]
        finally:
            await host.close()

    first, second = asyncio.run(kill_and_score())

    assert second.reward == first.reward
    assert second.metrics["pid"] != first.metrics["pid"]


def test_a_fork_that_returns_does_not_become_a_second_worker(probe, requests_for):
    async def score_often():
        host = RewardHost(probe("forks"))
        await host.start()
        try:
            return [(await host.score(requests_for([{}])))[0].metrics["pid"] for _ in range(20)]
        finally:
            await host.close()

    assert len(set(asyncio.run(score_often()))) == 1


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU],
)
def test_a_signal_to_everything_leaves_the_rewards_running(probe, requests_for, number):
    """A scheduler signals the whole job; the run then wants to finish its step."""

    async def signal_and_score():
        host = RewardHost(probe())
        await host.start()
        try:
            (first,) = await host.score(requests_for([{}]))
            pid = int(first.metrics["pid"])
            keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            for process in (keeper, pid):
                os.kill(process, number)
            return first, (await host.score(requests_for([{}])))[0]
        finally:
            await host.close()

    first, second = asyncio.run(signal_and_score())

    assert second.metrics == first.metrics


async def appeared(file):
    give_up = time.monotonic() + HANG_S
    while not file.exists():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.02)


def test_cancelling_stops_what_the_worker_does_and_the_next_batch_works(
    probe, requests_for, tmp_path
):
    asleep = tmp_path / "asleep"

    async def cancel_and_score():
        host = RewardHost(probe("sleeps", file=asleep, timeout_s=PATIENT_S))
        await host.start()
        try:
            hanging = asyncio.create_task(host.score(requests_for([{"bad": True}])))
            await appeared(asleep)
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            # Far less than the reward's time, which a worker that still hangs would use up.
            return await asyncio.wait_for(host.score(requests_for([{}, {}])), HANG_S)
        finally:
            await host.close()

    assert [one.reward for one in asyncio.run(cancel_and_score())] == [0.0, 1.0]


def test_closing_in_the_middle_of_a_batch_ends_it(probe, requests_for, tmp_path):
    asleep = tmp_path / "asleep"

    async def close_meanwhile():
        host = RewardHost(probe("sleeps", file=asleep, timeout_s=PATIENT_S))
        await host.start()
        hanging = asyncio.create_task(host.score(requests_for([{"bad": True}, {}])))
        await appeared(asleep)
        await host.close()
        await hanging

    with pytest.raises(RewardError, check=has_code("reward/closed")):
        asyncio.run(close_meanwhile())


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids):
    give_up = time.monotonic() + HANG_S
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < give_up:
        time.sleep(0.02)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("bad", [False, True])
def test_nothing_that_user_code_started_outlives_the_worker(probe, requests_for, tmp_path, bad):
    """A child, a detached child and a forked one; the worker answers and is closed, or hangs and is stopped."""
    file = tmp_path / "pids"

    score(probe("leaves_children", file=file, timeout_s=8.0), requests_for([{"bad": bad}]))

    pids = [int(word) for word in file.read_text().split()]
    assert len(pids) == 4
    assert wait_until_gone(pids) == []


def test_nothing_outlives_a_run_that_is_killed(tmp_path):
    """SIGKILL of the run while the reward hangs: neither the worker nor what it started is left."""
    file = tmp_path / "pids"
    script = textwrap.dedent(f"""
        import asyncio
        from rlhf_config.resolved import RewardOptions, Selection
        from rlhf_core.contracts import RewardRequest
        from rlhf_core.plugins import load
        from rlhf_guard.rewards.host import RewardHost

        registered = load().get("rlhf_rewards", "probe")
        selection = Selection(
            slot="reward.use", section="reward.probe", registered=registered, reward=RewardOptions(),
            options=registered.validate({{"behavior": "leaves_children", "file": {str(file)!r}}}),
        )
        request = RewardRequest(
            uid="0.0.0.0", row={{"bad": True}}, prompt="", response="", token_ids=(), action_mask=(), turns=(),
            truncated=False,
        )

        async def main():
            host = RewardHost(selection)
            await host.start()
            await host.score([request])

        asyncio.run(main())
    """)
    environment = {
        **os.environ,
        "RLHF_PLUGINS": "probe_rewards",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as run:
        try:
            asyncio.run(appeared(file))
        finally:
            run.kill()
    pids = [int(word) for word in file.read_text().split()]
    assert wait_until_gone(pids) == []


@pytest.mark.parametrize("isolate", [True, False])
def test_parts_stand_on_actions_of_their_own_sample(probe, requests_for, isolate):
    """The samples have two actions each."""
    rows = [{"parts": [[0, 0.25], [1, 0.75]]}, {"parts": [[2, 1.0]]}, {"parts": [[-1, 1.0]]}, {}]

    outcomes = score(probe("places", isolate=isolate), requests_for(rows))

    assert [one.reward for one in outcomes] == [1.0, None, None, 1.0]
    assert [one.step_rewards for one in outcomes] == [((0, 0.25), (1, 0.75)), (), (), ()]
    assert "a step reward at action 2; the sample has 2 action tokens" in outcomes[1].problem.text
    assert "at action -1" in outcomes[2].problem.text


def test_parts_that_nothing_announced_are_refused(probe, requests_for):
    rows = [{"parts": [[1, 1.0]]}, {}]

    undeclared, whole = score(probe("places_undeclared", isolate=False), requests_for(rows))

    assert "step_rewards, which it has not declared" in undeclared.problem.text
    assert "expected a component that needs 'credits_tokens'" in undeclared.problem.text
    assert whole.reward == 1.0


def test_a_part_too_large_for_float32_is_refused(probe, requests_for):
    rows = [{"parts": [[0, 1e38], [1, -1e38], [1, 1.0]]}]

    (outcome,) = score(probe("places", isolate=False, weight=0.5), requests_for(rows))

    assert "returned 1e+38; expected at most 1e+35 after its weight" in outcome.problem.text


def test_a_worker_sees_no_secret_of_the_environment(probe, requests_for, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("MY_JUDGE", "wanted")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    seen = tmp_path / "seen"
    selection = probe("tells_variables", file=seen, pass_env=("MY_JUDGE", "NOT_SET"))

    outcomes = score(selection, requests_for([{}]))

    assert outcomes[0].reward == 0.0
    names = set(seen.read_text().split())
    assert {"PATH", "HTTPS_PROXY", "RLHF_PLUGINS", "MY_JUDGE"} <= names
    assert not {"WANDB_API_KEY", "HF_TOKEN", "NOT_SET"} & names


def test_a_variable_that_is_missed_is_named_with_the_way_out(
    probe, requests_for, monkeypatch, tmp_path
):
    monkeypatch.setenv("JUDGE_KEY", "a secret")

    outcomes = score(
        probe("tells_variables", file=tmp_path / "seen"), requests_for([{"bad": "JUDGE_KEY"}])
    )

    assert outcomes[0].problem.text == (
        "raised KeyError: 'JUDGE_KEY' (its process gets few variables, and JUDGE_KEY is none of them: name it in "
        "pass_env)"
    )


def test_variables_for_a_reward_in_the_own_process_are_refused(probe):
    with pytest.raises(ValueError, match=r"pass_env = \['A'\] with isolate = false"):
        probe(isolate=False, pass_env=("A",))
