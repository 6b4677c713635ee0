"""How ours and a peer are measured: one after the other or at once, and what is left when the peer fails."""

import json
import sys

import pytest
from benchmarks import gpu_step

OURS = {
    "records": [{"timing": {"step_s": seconds}} for seconds in (9.0, 2.0)],
    "plan": None,
    "peak_gib": None,
    "torch_peak_gib": None,
}


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """``measured(peer, *flags)``: the report and the processes that were started; ``peer`` is what its says."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    report = tmp_path / "report.json"

    def run(peer, *flags):
        started = []

        def process(script, mark, model, flags, environment=None):
            started.append((script, environment))
            if script == "our_step.py":
                return OURS
            if isinstance(peer, SystemExit):
                raise peer
            return peer

        monkeypatch.setattr(gpu_step, "_run", process)
        known = ["--shape", "tiny", "--models", str(tmp_path), "--json", str(report)]
        monkeypatch.setattr(sys, "argv", ["gpu_step.py", *known, *flags])
        try:
            gpu_step.main()
        finally:
            run.report, run.started = json.loads(report.read_text()), started
        return run

    return run


def test_the_ratio_is_that_of_steps_after_the_first(measured, capsys):
    result = measured({"step_s": [50.0, 4.0]}, "--peer", "trl")

    assert [script for script, _ in result.started] == ["our_step.py", "peer_trl_step.py"]
    assert "ours / TRL      0.500" in capsys.readouterr().out


def test_a_peer_on_another_gpu_compiles_into_caches_of_its_own(measured, tmp_path):
    result = measured({"step_s": [50.0, 4.0]}, "--peer", "trl", "--peer-gpu", "3")

    environment = dict(result.started)["peer_trl_step.py"]
    assert environment.pop("CUDA_VISIBLE_DEVICES") == "3"
    assert set(environment) == set(gpu_step.COMPILE_CACHES)
    assert all(path.startswith(str(tmp_path)) for path in environment.values())


def test_what_was_measured_of_ours_is_kept_when_the_peer_fails(measured, capsys):
    with pytest.raises(SystemExit, match="ended with 1"):
        measured(SystemExit("TRL ended with 1"), "--peer", "trl")

    assert "step            2.000 s" in capsys.readouterr().out
    assert measured.report["ours"] == OURS
    assert measured.report["peer_failed"] == "TRL ended with 1"


def test_the_seconds_of_sleep_are_a_line_with_its_limit_and_its_parts(
    measured, monkeypatch, capsys
):
    parts = {"sleep_s": 0.5, "reload_s": 2.0, "offload_s": 2.5, "wake_s": 1.0}
    timing = {"step_s": 9.0, "moves_s": 6.0, **parts}
    planned = {"name": "sleep and wake", "limit_s": 4.5, "measured_s": None}
    plan = {"step_s": {"limit": 4.5, "overlaps": False}, "phases": [planned]}
    monkeypatch.setitem(OURS, "records", [{"timing": timing}] * 2)
    monkeypatch.setitem(OURS, "plan", plan)

    measured(None)

    text = capsys.readouterr().out
    assert "moves_s         6.000 s     75% of the limit, 4.500 s" in text
    assert "of moves_s: sleep_s 0.500, reload_s 2.000, offload_s 2.500, wake_s 1.000" in text
    assert "rest            3.000 s" in text


def test_of_a_run_that_generates_ahead_only_steps_beside_both_count(measured, monkeypatch, capsys):
    idle = {"engine_idle_share": 0.25, "trainer_idle_share": 0.5}
    records = [{"timing": {"step_s": seconds, **idle}} for seconds in (9.0, 5.0, 6.0, 7.0, 1.0)]
    monkeypatch.setitem(OURS, "records", records)
    phase = {"name": "decode", "limit_s": 4.5, "measured_s": None}
    plan = {"step_s": {"limit": 4.5, "overlaps": False}, "phases": [phase]}
    monkeypatch.setitem(OURS, "plan", plan)

    measured(None, "--", "rollout.max_staleness=1")

    text = capsys.readouterr().out
    assert "steps [5.0, 6.0, 7.0]" in text
    assert "mean of these steps 6.000 s; engine_idle_share 25%, trainer_idle_share 50%" in text
    assert "of the limit" not in text
    assert measured.report["options"]["rollout.min_new_tokens"] == "0"
