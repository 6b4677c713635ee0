"""Each mode of the table is measured as ``gpu_step.py`` measures, whatever options that has got since."""

import argparse

from benchmarks import scaling

RECORDS = [{"timing": {"step_s": seconds}, "metrics": {}} for seconds in (9, 2, 2)]
OURS = {"records": RECORDS, "plan": None, "peak_gib": None, "torch_peak_gib": None}


def test_a_mode_is_measured_with_all_that_a_step_has_options_for(monkeypatch, tmp_path):
    asked = []

    def process(script, mark, model, flags, environment=None):
        asked.append(flags)
        return OURS

    monkeypatch.setattr(scaling.gpu_step, "_run", process)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    workload = {"shape": "tiny", "prompts": 2, "samples": 2, "steps": 3}
    lengths = {"prompt_tokens": 4, "response_tokens": 6}
    arguments = argparse.Namespace(**workload, **lengths, gpus=2, options=[])

    row = scaling.measured(arguments, "colocated", tmp_path)

    assert "failed" not in row
    assert row["tokens_per_s"] == 2 * 2 * (4 + 6) / 2
    assert "--prompts=2" in asked[0]
    assert "runtime=ray" in asked[0]
