import os

import pytest

from rlhf_config import check_paths, parse_flags
from rlhf_config.paths import looks_like_path
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


@pytest.fixture
def check(resolved, tmp_path, monkeypatch):
    """Check the paths of a run with the given flags, in a folder with a model and a data file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "tiny"}')
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')

    def run(**changes):
        flags = {"model": "./model", "data": "rows.jsonl", "reward": "pattern"} | changes
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        check_paths(resolved(*words, enough=False), [parse_flags(words)])

    return run


def test_what_is_there_is_accepted(check):
    check()
    check(model="org/model", data="org/set:config")  # hub names are for the loader to find


def test_a_model_that_is_only_read_may_be_an_adapter(check, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")

    check(**{"ref.path": "./adapter", "algo.kl.coef": 0.1})
    check(**{"algo.teacher.path": "./adapter", "loss": "follow"})
    with pytest.raises(
        ConfigError,
        match=r"--algo.teacher.path ./missing: expected a Transformers",
        check=has_code("config/unusable-path"),
    ):
        check(**{"algo.teacher.path": "./missing", "loss": "follow"})

    for trained in ("model", "critic.path"):
        with pytest.raises(
            ConfigError,
            match="expected a whole model; it is an adapter",
            check=has_code("config/unusable-path"),
        ):
            check(**{"estimator": "discounted", trained: "./adapter"})


def test_a_balancing_loss_needs_a_model_with_experts(check, tmp_path):
    for role in ("actor", "critic"):
        with pytest.raises(
            ConfigError,
            match=rf"--{role}.router_aux_loss 0.1: expected a mixture of experts; ./model",
            check=has_code("config/unusable-path"),
        ):
            check(**{f"{role}.router_aux_loss": 0.1, "estimator": "discounted"})

    (tmp_path / "model" / "config.json").write_text('{"text_config": {"num_local_experts": 4}}')
    check(**{"actor.router_aux_loss": 0.1})


def test_routes_are_replayed_in_a_model_with_experts_alone(check, tmp_path, monkeypatch):
    # No backend of the sample plugin follows routes.
    monkeypatch.setattr("rlhf_config.checks.features.check_routes", lambda *_: None)
    words = {"algo.correction.replay_routes": "true"}

    with pytest.raises(
        ConfigError,
        match=r"replay_routes true: expected a mixture of experts",
        check=has_code("config/unusable-path"),
    ):
        check(**words)

    (tmp_path / "model" / "config.json").write_text('{"num_experts": 4}')
    check(**words)


@pytest.mark.parametrize(
    ("flag", "value", "part"),
    [
        ("model", "./missing", "--model ./missing: expected a Transformers folder or a hub name"),
        ("model", "a/b/c", "--model a/b/c: expected a Transformers folder"),
        ("model", "rows.jsonl", "this is a file"),
        ("model", "empty", "it has no config.json"),
        ("model", "run", "It is the folder of a run, whose model is in run/model; give that"),
        ("model", "other", "There is one in other/checkpoint-10; give that"),
        (
            "model",
            "many",
            "There are models in many/checkpoint-1000, many/checkpoint-200 (and 9 more); give one of them",
        ),
        ("model", "states", "but mp_rank_00_model_states.pt. Give the folder that save_pretrained"),
        ("model", "~/model", "only the shell expands ~"),
        ("model.tokenizer", "./model", "it has no tokenizer_config.json"),
        ("critic.path", "./missing", "--critic.path ./missing"),
        ("data", "missing.jsonl", "--data missing.jsonl: there is no such file (looked in"),
        ("data", "./x/y", "--data ./x/y: there is no such file"),
        ("data", "empty.jsonl", "the file is empty"),
        ("data", "notes.md", "expected a file that ends with .csv"),
        ("eval.data", "test=missing.csv", "--eval.data missing.csv"),
        ("output", "rows.jsonl", "rows.jsonl is a file"),
        ("output", "rows.jsonl/below", "rows.jsonl is a file"),
        ("output", "model", "there is a model in this folder"),
        ("output", "used", "a run is there already. Add --resume auto"),
        ("resume", "nowhere", "expected auto, restart, or a checkpoint's folder"),
    ],
)
def test_what_is_not_there_is_named(check, tmp_path, flag, value, part):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").touch()
    (tmp_path / "other" / "checkpoint-10").mkdir(parents=True)
    (tmp_path / "other" / "checkpoint-10" / "config.json").touch()
    for step in (20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 1000):
        (tmp_path / "many" / f"checkpoint-{step}").mkdir(parents=True)
        (tmp_path / "many" / f"checkpoint-{step}" / "config.json").touch()
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "mp_rank_00_model_states.pt").touch()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / "used" / "checkpoints").mkdir(parents=True)

    with pytest.raises(ConfigError) as caught:
        check(**{"estimator": "discounted", flag: value})

    assert part in str(caught.value)


@pytest.fixture
def run_folder(tmp_path):
    """A run that was stopped at step 20, with two checkpoints and no model."""
    root = tmp_path / "runs" / "mine"
    for step in (10, 20):
        (root / "checkpoints" / f"step-{step:08}" / "policy").mkdir(parents=True)
    (root / "metrics.jsonl").touch()
    (root / "config.toml").write_text(
        "# A run's whole configuration, by rlhf-core 0.1.0. Repeat it: rlhf sft -c THIS_FILE\n"
    )
    return root


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ("", 20),
        ("checkpoints", 20),
        ("checkpoints/step-00000010", 10),
        ("checkpoints/step-00000010/policy", 10),
    ],
)
def test_for_a_checkpoint_the_command_that_writes_its_model_is_named(
    check, run_folder, tmp_path, given, step
):
    command = (
        f"rlhf sft -c runs/mine/config.toml --resume runs/mine/checkpoints/step-{step:08} --train.steps {step} "
        f"--output runs/mine-step-{step}"
    )
    for path in (run_folder / given, os.path.relpath(run_folder / given, tmp_path)):
        with pytest.raises(ConfigError, check=has_code("config/unusable-path")) as caught:
            check(model=path)
        assert str(caught.value).endswith(command)


def test_for_a_finished_run_the_folder_of_its_model_is_named(check, run_folder):
    (run_folder / "model").mkdir()
    (run_folder / "model" / "adapter_config.json").touch()

    for given in ("", "checkpoints"):
        with pytest.raises(ConfigError, check=has_code("config/unusable-path")) as caught:
            check(model=run_folder / given)
        assert "whose model is in runs/mine/model; give that" in str(caught.value)
    with pytest.raises(ConfigError, check=has_code("config/unusable-path")) as caught:
        check(model=run_folder / "checkpoints" / "step-00000010")
    assert "last step is in runs/mine/model." in str(caught.value)
    assert "--output runs/mine-step-10" in str(caught.value)


def test_a_checkpoint_of_a_python_program_is_written_by_its_program(check, run_folder):
    (run_folder / "config.toml").write_text('[reward]\nuse = ["python:length"]\n')

    with pytest.raises(ConfigError, check=has_code("config/unusable-path")) as caught:
        check(model=run_folder)

    assert "The run's own command with train.steps 20" in str(caught.value)


def test_the_base_of_an_adapter_is_named(check, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}'
    )

    with pytest.raises(ConfigError, check=has_code("config/unusable-path")) as caught:
        check(model="adapter")

    assert "rlhf merge Qwen/Qwen3-0.6B adapter OUT" in str(caught.value)


def test_a_file_may_have_an_equals_sign_in_its_name(check, tmp_path):
    (tmp_path / "a=b.jsonl").write_text("{}")

    check(**{"eval.data": "a=b.jsonl"})
    check(**{"eval.data": "name=a=b.jsonl"})


@pytest.mark.parametrize("flag", ["model", "data", "output", "resume"])
@pytest.mark.parametrize("name", ["./" + 300 * "x", "./nul\0byte"])
def test_names_that_no_file_can_have_are_refused_like_others(check, flag, name):
    with pytest.raises(ConfigError, match=f"--{flag}", check=has_code("config/unusable-path")):
        check(**{flag: name})


def test_an_output_that_is_no_folder_is_refused(check, tmp_path):
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")

    for name, kind in (
        ("dangling", "a link to nothing"),
        ("loop", "a name that cannot be looked up"),
        ("fifo", "is a file"),
    ):
        with pytest.raises(
            ConfigError,
            match=rf"--output {name}: expected a folder; .*{kind}",
            check=has_code("config/unusable-path"),
        ):
            check(output=name)


def test_a_used_folder_can_be_resumed(check, tmp_path):
    (tmp_path / "used" / "checkpoints").mkdir(parents=True)

    check(output="used", resume="auto")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(check, tmp_path):
    (tmp_path / "rows.jsonl").chmod(0)

    with pytest.raises(ConfigError, match="permissions", check=has_code("config/unusable-path")):
        check()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", False),
        ("org/model", False),
        ("org/set:config", False),
        ("/abs", True),
        ("./rel", True),
        ("../up", True),
        ("a/b/c", True),
        ("folder/", True),
    ],
)
def test_hub_names_are_told_from_paths(name, expected):
    assert looks_like_path(name) is expected
