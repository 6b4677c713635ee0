import json

import pytest

from rlhf_config import Layer, parse_flags, read_toml, resolve, write_toml
from rlhf_core import ConfigError, PluginError
from rlhf_testing.errors import has_code


def test_defaults_select_and_flags_override(resolved):
    result = resolved("--actor.optim", "momentum", "--actor.momentum.lr", "0.5", "--train.steps=7")

    assert result.run.train.steps == 7
    chosen = result.one("actor.optim")
    assert chosen.registered.qualified == "sample:momentum"
    assert chosen.options.lr == 0.5
    assert result.one("critic.optim").registered.name == "plain"
    assert result.optional("algo.correction.kind") is None


def test_flags_win_over_files_and_later_files_over_earlier_ones(resolved):
    files = [
        Layer.of({"train": {"steps": 1, "epochs": 4}, "seed": 1}, "a.toml"),
        Layer.of({"train": {"steps": 2}, "seed": 2}, "b.toml"),
    ]

    result = resolved("--seed", "3", files=files)

    assert (result.run.train.steps, result.run.train.epochs, result.run.seed) == (2, 4, 3)


AS_FILE = """
[model]
path = "some/model"
[data]
train = ["org/set"]
[reward]
use = ["pattern"]
pattern = { pattern = "y", weight = 2.0 }
[runtime]
name = "here"
[engine]
name = "fake_engine"
[backend]
name = "table"
[rollout]
executor = "one_turn"
[algo.advantage]
estimator = "discounted"
discounted.gamma = 0.5
[algo.loss]
policy = "clip"
[algo.kl]
estimator = "k2"
coef = 0.1
[actor]
optim = "momentum"
max_norm = "none"
[actor.momentum]
betas = [0.5, 0.6]
inner.lr = 0.25
[actor.momentum.limits]
head = 3
[critic]
optim = "plain"
"""
AS_FLAGS = """
--model some/model
--data org/set
--reward pattern
--reward.pattern.pattern y
--reward.pattern.weight 2
--runtime here
--engine fake_engine
--backend table
--executor one_turn
--estimator discounted
--algo.advantage.discounted.gamma 0.5
--loss clip
--algo.kl.estimator k2
--algo.kl.coef 0.1
--optim momentum
--actor.max_norm none
--actor.momentum.betas 0.5 0.6
--actor.momentum.inner.lr 0.25
--actor.momentum.limits.head 3
--critic.optim plain
"""


def test_the_same_path_means_the_same_in_every_layer(plugins, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(AS_FILE)

    from_file = resolve([read_toml(path)], plugins)
    from_flags = resolve([parse_flags(AS_FLAGS.split())], plugins)

    assert from_file.tree == from_flags.tree
    assert from_file.run == from_flags.run
    assert from_flags.one("actor.optim").options.limits == {"head": 3.0}
    assert from_flags.run.actor.max_norm is None


def test_a_list_of_words_and_a_repeated_flag_are_the_same(resolved):
    words = resolved("--rollout.filters", "spread", "length")
    repeated = resolved("--rollout.filters", "spread", "--rollout.filters", "length")

    names = [chosen.registered.name for chosen in words.selections["rollout.filters"]]
    assert names == ["spread", "length"]
    assert words.tree == repeated.tree


def test_a_whole_section_may_be_unset(resolved, plugins, tmp_path):
    result = resolved("--optim", "momentum", "--actor.momentum.outer", "none")
    assert result.one("actor.optim").options.outer is None

    write_toml(result, tmp_path / "config.toml")
    again = resolve([read_toml(tmp_path / "config.toml")], plugins)
    assert again.one("actor.optim").options.outer is None


def test_a_list_on_the_command_line_replaces_that_of_a_file(resolved):
    files = [
        Layer.of({"rollout": {"stop": ["a", "b"]}}),
        Layer.of({"rollout": {"filters": ["spread"]}}),
    ]

    result = resolved("--rollout.stop", "c", "--rollout.filters", "none", files=files)

    assert result.run.rollout.stop == ("c",)
    assert result.selections["rollout.filters"] == ()


def test_a_reward_section_holds_the_options_of_the_reward_and_of_the_core(resolved):
    result = resolved("--reward.pattern.pattern", "ab", "--reward.pattern.weight", "-0.5")

    (chosen,) = result.selections["reward.use"]
    assert chosen.section == "reward.pattern"
    assert chosen.options.pattern == "ab"
    assert chosen.reward.weight == -0.5
    assert result.tree["reward"]["pattern"]["weight"] == -0.5
    assert result.tree["reward"]["pattern"]["pattern"] == "ab"


def test_an_alias_selects_and_names_the_section(resolved):
    result = resolved("--estimator", "baseline", "--algo.advantage.baseline.gamma", "0.5")

    assert result.one("algo.advantage.estimator").options.gamma == 0.5
    assert result.tree["algo"]["advantage"]["estimator"] == "sample:mean_baseline"
    assert result.tree["algo"]["advantage"]["mean_baseline"]["gamma"] == 0.5


def test_an_option_under_a_name_and_its_alias_is_refused(resolved):
    with pytest.raises(ConfigError, check=has_code("config/alias-twice")):
        resolved("--algo.advantage.baseline.gamma=0.5", "--algo.advantage.mean_baseline.gamma=0.5")


def test_a_qualified_name_selects(resolved):
    result = resolved("--optim", "sample:momentum", "--actor.momentum.lr", "0.5")

    assert result.one("actor.optim").options.lr == 0.5


def test_a_section_of_an_unselected_component_may_wait_in_a_file(resolved):
    waiting = Layer.of({"actor": {"momentum": {"lr": 0.5}, "simple": {"lr": 0.1}}}, "run.toml")

    result = resolved(files=[waiting])

    assert result.unused == ("actor.momentum",)
    assert result.one("actor.optim").options.lr == 0.1  # simple is an alias of what is selected
    assert "momentum" not in result.tree["actor"]


def test_a_section_of_an_unselected_component_is_refused_on_the_command_line(resolved):
    with pytest.raises(ConfigError) as caught:
        resolved("--actor.momentum.lr", "0.5")

    assert str(caught.value) == (
        "--actor.momentum.lr: momentum (sample) is not selected; this run uses --optim plain.\n"
        "  Add --optim momentum, or leave the option out."
    )


def test_every_problem_is_named_and_the_first_is_explained(resolved):
    with pytest.raises(ConfigError) as caught:
        resolved(
            "--train.steps", "0", "--train.epochs", "x", "--actor.plain.lr", "-1", "--nonsense", "1"
        )

    message = str(caught.value)
    assert message.startswith("--nonsense: there is no such option")
    assert "also wrong: --train.steps, --train.epochs, --actor.plain.lr" in message


def test_the_owner_of_an_option_is_named(resolved):
    with pytest.raises(
        ConfigError,
        match=r"option of mean_baseline \(sample\)",
        check=has_code("config/out-of-range"),
    ):
        resolved("--algo.advantage.mean_baseline.gamma", "1.5")


def test_an_option_of_another_word_is_no_near_one_though_its_section_is_the_same(resolved):
    with pytest.raises(ConfigError, match=r"\.share: ", check=has_code("config/unknown-option")):
        resolved("--algo.advantage.mean_baseline.share", "1")


def test_a_files_option_is_named_by_file_and_key(resolved):
    with pytest.raises(
        ConfigError,
        match=r"^run\.toml: train\.steps: expected at least 1, got 0",
        check=has_code("config/out-of-range"),
    ):
        resolved(files=[Layer.of({"train": {"steps": 0}}, "run.toml")])


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--train.step", "--steps"),
        ("--lr", "--actor.plain.lr or --critic.plain.lr"),
        ("--estimater", "--estimator"),
        ("--rollout.batch-size", "--rollout.batch_size"),
        ("--algo.gamma", "--algo.advantage.mean_baseline.gamma"),
        ("--rollout.tempreature", "--rollout.temperature"),
        ("--checkpoint.evry", "--checkpoint.every"),
        ("--learning_rate", "--actor.plain.lr"),
        ("--num_generations", "--rollout.n_samples_per_prompt"),
        ("--output_dir", "--output"),
    ],
)
def test_an_unknown_option_gets_the_nearest_one(resolved, word, near):
    with pytest.raises(ConfigError) as caught:
        resolved(word, "1")

    assert str(caught.value) == f"{word}: there is no such option. Did you mean {near}?"


def test_an_option_that_was_renamed_is_refused_with_its_name(resolved):
    with pytest.raises(ConfigError) as typed:
        resolved("--log.tensorboard_images", "2")
    with pytest.raises(ConfigError) as written:
        resolved(files=[Layer.of({"log": {"tensorboard_images": 2}}, "run.toml")])

    assert str(typed.value) == "--log.tensorboard_images: that option is now --log.images"
    assert str(written.value) == "run.toml: log.tensorboard_images: that option is now log.images"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "config/wrong-type"),
        (("0.9",), "config/out-of-range"),
        (("0.9", "0.9", "0.9"), "config/out-of-range"),
        (("none",), "config/out-of-range"),
    ],
)
def test_a_pair_takes_two_values(resolved, words, code):
    with pytest.raises(
        ConfigError, match=r"^--actor\.momentum\.betas: expected", check=has_code(code)
    ):
        resolved("--optim", "momentum", "--actor.momentum.betas", *words)


def test_a_reward_whose_options_clash_with_the_cores_is_the_plugins_fault(resolved):
    with pytest.raises(
        PluginError, match=r"'weight'.*every reward", check=has_code("plugin/option-name-taken")
    ):
        resolved("--model", "m", "--data", "d", "--reward", "clashing", enough=False)


def test_a_component_called_like_an_option_beside_it_is_the_plugins_fault(resolved, plugins):
    from rlhf_core import Component, Registered

    entry = Registered(Component(name="use", factory=dict), "other")
    plugins.registries["rlhf_environments"].add(entry)

    with pytest.raises(PluginError, check=has_code("plugin/section-taken")):
        resolved("--env", "use", "--executor", "turns")


def test_validation_that_crashes_is_the_plugins_fault(resolved):
    with pytest.raises(
        PluginError, match=r"exploding.*boom", check=has_code("plugin/check-failed")
    ):
        resolved("--reward.shapers", "exploding", "--reward.exploding.depth", "2")


def test_a_plugins_own_check_of_its_options_reaches_the_user(resolved):
    with pytest.raises(
        ConfigError,
        match=r"reward\.bounds: low is 2\.0; expected less than high",
        check=has_code("config/invalid"),
    ):
        resolved("--reward.shapers", "bounds", "--reward.bounds.low", "2")


def test_two_components_cannot_share_a_section(resolved):
    with pytest.raises(
        ConfigError, match=r"'rollout\.spread'", check=has_code("config/section-taken")
    ):
        resolved("--rollout.filters", "spread", "spread")


def test_the_tree_is_plain_and_complete(resolved):
    tree = resolved().tree

    assert json.loads(json.dumps(tree)) == tree
    assert tree["rollout"]["max_length"] is None
    assert tree["actor"]["plain"] == {"lr": 0.001}


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--actor.max_norm", "none", "--rollout.stop", "a b", "", "--resume", "auto"),
        ("--optim", "momentum", "--actor.momentum.limits.x=1", "--actor.momentum.cap", "none"),
        ("--estimator", "discounted", "--reward.pattern.pattern", 'quote " and \\ and ü'),
        (
            "--executor",
            "turns",
            "--env",
            "maze",
            "--rollout.max_length=2048",
            "--eval.temperatures",
            "0",
            "1",
            "--eval.data",
            "x",
        ),
    ],
)
def test_what_a_run_records_repeats_it(resolved, plugins, tmp_path, words):
    words = [word for word in words if word]
    first = resolved(*words)
    write_toml(first, tmp_path / "config.toml")

    again = resolve([read_toml(tmp_path / "config.toml")], plugins)

    assert {**again.tree, "resume": None} == {**first.tree, "resume": None}
    assert again.selections.keys() == first.selections.keys()
    assert [c.options for c in again.selections["actor.optim"]] == [
        c.options for c in first.selections["actor.optim"]
    ]


def test_missing_selectors_list_what_is_installed(plugins):
    with pytest.raises(
        ConfigError,
        match="--runtime: expected a runtime; installed: here",
        check=has_code("config/wrong-type"),
    ):
        resolve([parse_flags(["--model", "m"])], plugins)
