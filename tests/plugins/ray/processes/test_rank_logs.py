"""What ranks log while they are set up and updated reaches the driver's log."""

import json
import logging

import pytest

from rlhf_core import plugins as plugin_loader
from rlhf_plugin_ray.processes.rank_logs import LogMessage, listening, log_ranks
from rlhf_testing.tiny import write_tiny_model

CORE = logging.getLogger("rlhf_core.anything")


def test_information_and_warnings_of_the_body_are_collected():
    loaded = plugin_loader.empty()
    with listening(loaded) as messages:
        CORE.debug("detail")
        CORE.info("groups of %s", "policy")
        CORE.warning("careful")
    CORE.warning("later")

    assert messages == [
        LogMessage(level=logging.INFO, message="groups of policy"),
        LogMessage(level=logging.WARNING, message="careful"),
    ]


def test_loggers_are_left_as_they_were():
    top = logging.getLogger("rlhf_core")
    before = (top.level, list(top.handlers))

    with pytest.raises(KeyError), listening(plugin_loader.empty()):
        raise KeyError

    assert (top.level, list(top.handlers)) == before


def test_what_a_body_that_fails_has_logged_is_logged_in_its_process(caplog):
    def body():
        with listening(plugin_loader.empty()):
            CORE.warning("%s is odd", "5 %")
            raise KeyError

    with pytest.raises(KeyError):
        body()

    assert "5 % is odd" in [
        record.getMessage() for record in caplog.records if record.name.endswith("rank_logs")
    ]


def test_information_is_told_once_and_warnings_for_each_rank(caplog):
    both = [
        LogMessage(level=logging.INFO, message="groups"),
        LogMessage(level=logging.WARNING, message="careful"),
    ]
    with caplog.at_level(logging.INFO, logger="rlhf_plugin_ray"):
        log_ranks([both, both], ["policy rank 0", "policy rank 1"])

    assert caplog.messages == [
        "policy rank 0: groups",
        "policy rank 0: careful",
        "policy rank 1: careful",
    ]


@pytest.mark.scale
@pytest.mark.slow
def test_the_runs_log_lists_the_parameter_groups_of_a_rank(tmp_path, monkeypatch, cluster):
    from rlhf_cli.main import main

    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(6)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "vary.py").write_text("def score(response):\n    return len(response) % 3\n")
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "model", "--data", "mine.jsonl", "--reward", "vary.py:score"]
    flags += ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2", "--steps", "1"]
    flags += ["--rollout.max_new_tokens", "4", "--log.progress", "off", "--runtime", "ray"]

    assert main(["train", *flags, "--optim", "muon", "--output", "run"]) == 0

    log = (tmp_path / "run/run.log").read_text()
    for group in ("muon", "adam_decay", "adam_no_decay"):
        assert log.count(f": optimizer of the policy, group {group} (") == 1
    assert "policy rank 0" in log
