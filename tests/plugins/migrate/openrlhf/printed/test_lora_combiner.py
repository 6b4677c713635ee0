"""``lora_combiner`` becomes a command line of ``rlhf merge``."""

from pathlib import Path

from rlhf_plugin_migrate.openrlhf.printed.lora_combiner import migrate

COMMANDS = Path(__file__).parents[2] / "commands"


def test_the_command_prints_base_adapter_and_folder(run, workspace):
    migrated = run(COMMANDS / "combine.sh")

    assert migrated.code == 0
    line = "rlhf merge meta-llama/Meta-Llama-3-8B ./checkpoint/llama3-8b-rm ./checkpoint/llama-3-8b-rm-combined"
    assert line in migrated.report.splitlines()
    assert "Not understood" not in migrated.report


def test_a_missing_folder_has_a_placeholder_and_a_warning():
    line, out = migrate(["--model_path", "a b", "--lora_path", "l", "--param_dtype", "fp16"])

    assert line == "rlhf merge 'a b' l OUT"
    assert out.warnings == ["--output_path is missing: put it in place of OUT"]
