"""The command as it is typed: its inputs, what it writes, what it exits with and what it refuses."""

import io
import sys
import tomllib

import pytest

LINE = [
    *("python3", "-m", "openrlhf.cli.train_ppo_ray"),
    *("--actor.model_name_or_path", "m"),
    *("--data.prompt_dataset", "d.jsonl"),
    *("--vllm.num_engines", "1"),
    *("--reward.remote_url", "http://127.0.0.1:5000/get_reward"),
]


def test_a_command_line_is_read_behind_two_dashes(run, workspace):
    migrated = run("--", *LINE)

    assert migrated.code == 0
    assert migrated.config["model"] == {"path": "m", "dtype": "bfloat16"}


def test_standard_input_and_output(run, workspace, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.StringIO(" ".join(LINE)))

    migrated = run("-", output=None)

    assert migrated.code == 0
    assert 'path = "m"' in migrated.report
    assert not list(tmp_path.glob("*.toml"))


def test_the_output_on_standard_output_is_toml(workspace, capsys):
    from rlhf_cli.main import main

    main(["migrate", "--", *LINE])

    assert tomllib.loads(capsys.readouterr().out)["runtime"]["name"] == "ray"


def test_several_commands_become_several_files(run, workspace, tmp_path):
    other = " ".join(LINE).replace("path m", "path n")
    (tmp_path / "two.sh").write_text(f"{' '.join(LINE)}\n{other}\n")

    migrated = run("two.sh", output="both.toml")

    assert migrated.code == 0
    paths = [
        tomllib.loads((tmp_path / f"both-{n}.toml").read_text())["model"]["path"] for n in (1, 2)
    ]
    assert paths == ["m", "n"]


def test_nothing_is_overwritten_and_nothing_is_written_in_part(run, workspace, tmp_path):
    (tmp_path / "run_reward.py").write_text("mine")
    line = [word.replace("http://127.0.0.1:5000/get_reward", "f.py") for word in LINE]

    migrated = run("--", *line)

    assert migrated.code == 2
    assert "run_reward.py is there already" in migrated.report
    assert not (tmp_path / "run.toml").exists()
    assert (tmp_path / "run_reward.py").read_text() == "mine"


def test_strict_fails_for_what_has_no_equivalent(run, workspace):
    assert run("--strict", "--", *LINE).code == 0
    missing = ("--ref.offload",)
    assert run("--strict", "--", *LINE, *missing, output="a.toml").code == 1
    assert run("--", *LINE, *missing, output="b.toml").code == 0


def test_an_unknown_flag_is_reported_with_the_nearest_one(run, workspace):
    migrated = run("--strict", "--", *LINE, "--actor.eps_clp", "0.3")

    assert migrated.code == 1
    assert "Did you mean --actor.eps_clip?" in migrated.report


def test_a_value_that_cannot_be_read_is_reported_and_left_out(run, workspace, tmp_path):
    (tmp_path / "run.sh").write_text(f"{' '.join(LINE)} --rollout.batch_size $BATCH")

    migrated = run("run.sh")

    assert "expected a whole number, got $BATCH" in migrated.report
    assert "--set" in migrated.report
    assert run("run.sh", "--set", "BATCH=32", output="b.toml").config["rollout"]["batch_size"] == 32


def test_a_configuration_that_rlhf_train_refuses_says_so(run, workspace):
    """OpenRLHF corrects truncated samples by log-probs of another distribution; here the two are refused together."""
    words = ["--rollout.top_p", "0.9", "--algo.advantage.is_correction_level", "token"]

    migrated = run("--", *LINE, *words)

    assert migrated.code == 1
    assert "rlhf train refuses this configuration" in migrated.report
    assert migrated.config["rollout"]["top_p"] == 0.9


@pytest.mark.parametrize(
    ("program", "target"),
    [("train_kto", "rlhf dpo --preference.loss kto"), ("train_prm", "rlhf prm")],
)
def test_a_program_that_openrlhf_has_no_longer_is_refused_with_its_counterpart(
    run, workspace, program, target
):
    migrated = run("--", "deepspeed", "--module", f"openrlhf.cli.{program}", "--adam.lr", "1e-5")

    assert migrated.code == 2
    assert target in migrated.report


def test_programs_with_a_table_are_written_beside_one_without(run, workspace, tmp_path):
    (tmp_path / "both.sh").write_text(
        f"deepspeed --module openrlhf.cli.train_prm\n{' '.join(LINE)}\n"
    )

    migrated = run("both.sh")

    assert migrated.code == 2
    assert migrated.config["model"]["path"] == "m"


def test_a_script_of_stages_becomes_a_file_for_each(run, workspace, tmp_path):
    sft = "deepspeed --module openrlhf.cli.train_sft --pretrain m --dataset d.jsonl --output_key o"
    merge = "python -m openrlhf.cli.lora_combiner --model_path m --lora_path a --output_path o"
    (tmp_path / "stages.sh").write_text(f"{sft}\n{merge}\n{' '.join(LINE)}\n")

    migrated = run("stages.sh", output="stage.toml")

    assert migrated.code == 0
    assert "rlhf sft -c FILE" in (tmp_path / "stage-1.toml").read_text()
    assert "rlhf train -c FILE" in (tmp_path / "stage-2.toml").read_text()
    assert "rlhf merge m a o" in migrated.report


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected a file"),
        (["a.sh", "b.sh"], "expected one file"),
        (["nowhere.sh"], "cannot read nowhere.sh"),
        (
            ["--", "python", "train.py"],
            "expected one file, or a command line of OpenRLHF, TRL, verl, SkyRL or prime-rl, such as python3 -m "
            "openrlhf.cli.train_ppo_ray, trl grpo or python3 -m verl.trainer.main_ppo; got python train.py",
        ),
        (["empty.sh"], "none among the 1 commands of empty.sh"),
        (["kto.sh"], "one of TRL (trl grpo, sft or dpo, or their scripts"),
        (["slurm.sh"], "It reads ./train.sh (line 2), which is not opened: migrate that script"),
        (["--set", "X", "--", *LINE], "expected NAME=VALUE"),
        (["--from", "slime", "x"], "invalid choice"),
        (["--from", "trl", "--processes", "0", "x.yaml"], "expected 1 or more"),
        (["--from", "trl", "--script", "kto", "x.yaml"], "invalid choice"),
    ],
)
def test_bad_input_is_an_error_with_a_reason(run, workspace, tmp_path, words, expected):
    (tmp_path / "empty.sh").write_text("echo nothing\n")
    (tmp_path / "kto.sh").write_text("accelerate launch trl/scripts/kto.py --beta 0.1\n")
    slurm = "mkdir logs\nsource ./train.sh slurm\nsrun torchrun -m ${training_commands}\n"
    (tmp_path / "slurm.sh").write_text(slurm)

    migrated = run(*words)

    assert migrated.code == 2
    assert expected in migrated.report


def test_flags_that_bash_passes_to_nobody_are_reported(run, workspace, tmp_path):
    """A comment between continued lines ends the command."""
    text = f"set -x\n{' '.join(LINE)} \\\n   # --train.seed 1 \\\n   --train.seed 2\n"
    (tmp_path / "run.sh").write_text(text)

    migrated = run("run.sh")

    assert "seed" not in migrated.config
    assert "line 4: --train.seed 2 belongs to no command" in migrated.report
    assert "not looked at: set" in migrated.report


def test_every_word_of_the_input_is_in_the_report(run, workspace):
    migrated = run(
        "--", "CUDA_VISIBLE_DEVICES=0", "torchrun", "--nproc_per_node", "2", "-m", *LINE[2:]
    )

    flat = " ".join(migrated.report.split())
    for word in ("CUDA_VISIBLE_DEVICES=...", "torchrun --nproc_per_node 2 -m", *LINE[3:]):
        assert word in flat


TRL = "--model_name_or_path model --dataset_name rows.jsonl --learning_rate 1e-5 --max_length 8"
TRL_SCRIPT = """
args = SFTConfig(learning_rate=1e-5, max_length=8, run_name=named())
SFTTrainer("model", args, train_dataset=load_dataset("rows.jsonl"))
"""


@pytest.mark.parametrize("form", ["command line", "shell", "python"])
def test_a_run_of_trl_is_read_from_its_launch_and_from_a_script(run, workspace, tmp_path, form):
    (tmp_path / "train.sh").write_text(
        f"pip install trl\naccelerate launch trl/scripts/sft.py {TRL}\n"
    )
    (tmp_path / "train.py").write_text(TRL_SCRIPT)
    words = {
        "command line": ["--", "trl", "sft", *TRL.split()],
        "shell": ["train.sh"],
        "python": ["train.py", "--from", "trl", "--strict"],
    }[form]

    migrated = run(*words)

    assert migrated.config["actor"]["adam"]["lr"] == 1e-5
    assert migrated.config["data"]["max_length"] == 8
    assert migrated.config["data"]["train"] == ["rows.jsonl"]
    assert migrated.code == (1 if form == "python" else 0)
    assert ("run_name: named() -> line 2" in migrated.report) is (form == "python")


def test_a_command_of_trl_without_a_table_is_refused_with_its_counterpart(run, workspace):
    migrated = run("--", "trl", "reward", "--max_length", "8")

    assert migrated.code == 2
    assert "rlhf rm does the same" in migrated.report


@pytest.mark.parametrize("value", ["MODEL=m", "LR=--lr"])
def test_a_variable_is_refused_where_no_shell_script_is_read(run, workspace, tmp_path, value):
    (tmp_path / "run.yaml").write_text("model_name_or_path: m\ndataset_name: d\nbeta: 0.1\n")

    for words in (("--set", value, "--", *LINE), ("run.yaml", "--from", "trl", "--set", value)):
        migrated = run(*words)

        assert migrated.code == 2
        assert f"--set {value}: gives a variable of a shell script" in migrated.report
        assert not (tmp_path / "run.toml").exists()


def test_a_variable_in_another_form_is_refused_with_an_example(run, workspace):
    migrated = run("--set", "a: 1", "--", *LINE)

    assert migrated.code == 2
    assert "--set a: 1: expected NAME=VALUE with the name of a shell variable" in migrated.report


def test_a_yaml_file_needs_the_framework_that_it_is_of(run, workspace, tmp_path):
    (tmp_path / "run.yaml").write_text("model_name_or_path: m\n")

    migrated = run("run.yaml")

    assert migrated.code == 2
    assert "--from trl or --from verl" in migrated.report
