"""The options of a command that is not ``rlhf train``: the same layers, selectors, messages and help."""

import pytest
from pydantic import Field

from rlhf_config import (
    Layer,
    OptionTree,
    RunOptions,
    Selector,
    check_paths,
    parse_flags,
    render_help,
    resolve_options,
)
from rlhf_config.common import (
    BackendSelection,
    CheckpointConfig,
    EvalSchedule,
    LogConfig,
    ModelConfig,
    ResumeConfig,
    RuntimeSelection,
)
from rlhf_core import Config, ConfigError
from rlhf_testing.errors import has_code


class Teaching(Config):
    optim: str = Field(description="optimizer")
    data: tuple[str, ...] = ()


class TeachOptions(RunOptions):
    seed: int = 0
    output: str = "runs/teach"
    model: ModelConfig
    teach: Teaching
    eval: EvalSchedule = EvalSchedule()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    resume: ResumeConfig = ResumeConfig()
    backend: BackendSelection
    runtime: RuntimeSelection


def refuse_seed_13(run, selections, labels, plugins):
    if run.seed == 13:
        raise ConfigError(f"{labels('seed')} 13 is unlucky")


TEACH = OptionTree(
    command="teach",
    purpose="Teaches a model.",
    example="--teach.optim NAME",
    model=TeachOptions,
    selectors=(
        Selector("backend.name", "rlhf_train_backends"),
        Selector("runtime.name", "rlhf_runtimes"),
        Selector("teach.optim", "rlhf_optimizers"),
    ),
    check=refuse_seed_13,
    cautions=lambda run, selections, labels: ("slow",) if run.seed == 12 else (),
    models=lambda run: iter([("model.path", run.model.path)]),
    data=lambda run: (("teach.data", each) for each in run.teach.data),
)


@pytest.fixture
def layers():
    def of(*words):
        chosen = {
            "backend": {"name": "table"},
            "runtime": {"name": "here"},
            "teach": {"optim": "plain"},
        }
        return [Layer.of(chosen), parse_flags(["--model", "tiny", *words])]

    return of


def test_options_and_components_are_those_of_the_tree(layers, plugins):
    found = resolve_options(layers("--teach.data", "a.jsonl"), plugins, TEACH)

    assert found.run.teach.data == ("a.jsonl",)
    assert found.one("teach.optim").section == "teach.plain"
    assert found.tree["teach"]["plain"] == found.one("teach.optim").options.model_dump()
    assert found.selections.keys() == {"backend.name", "runtime.name", "teach.optim"}


def test_its_own_check_and_cautions_are_asked(layers, plugins):
    with pytest.raises(ConfigError, match="--seed 13 is unlucky", check=has_code("config/invalid")):
        resolve_options(layers("--seed", "13"), plugins, TEACH)
    assert resolve_options(layers("--seed", "12"), plugins, TEACH).cautions == ("slow",)
    assert resolve_options(layers("--seed", "11"), plugins, TEACH).cautions == ()


def test_options_of_training_by_reward_do_not_exist_there(layers, plugins):
    with pytest.raises(
        ConfigError, match=r"--rollout\.batch_size", check=has_code("config/unknown-option")
    ):
        resolve_options(layers("--rollout.batch_size", "4"), plugins, TEACH)


def test_paths_that_it_names_are_checked(layers, plugins, tmp_path):
    given = layers("--teach.data", "gone.jsonl", "--output", str(tmp_path / "run"))
    found = resolve_options(given, plugins, TEACH)

    with pytest.raises(
        ConfigError,
        match=r"--teach.data gone.jsonl: there is no such file",
        check=has_code("config/unusable-path"),
    ):
        check_paths(found, given, TEACH)


def test_help_has_its_name_its_sections_and_its_components(layers, plugins):
    text = render_help(layers(), plugins, 100, TEACH)

    assert text.startswith("Usage: rlhf teach [-c FILE.toml]")
    assert "Teaches a model.\nOptions come from" in text
    assert "rlhf teach --teach.optim NAME --help" in text
    assert "--teach.plain.lr" in text
    assert "--rollout." not in text
