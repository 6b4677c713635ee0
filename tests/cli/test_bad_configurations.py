"""Everything that a user can get wrong is one short message with exit code 2, and never a traceback.

Each case: words after ``rlhf train`` with a model, data and reward that are fine, and what the message has to say. It
has to begin with the option as it was typed, or with the file and key.
"""

import pytest

from rlhf_cli.errors import report

COMPLETE = ["--model", "./model", "--data", "rows.jsonl", "--reward", "reward.py:score"]

FLAGS = {
    # names
    "unknown option": ("--nonsense 1", "--nonsense: there is no such option"),
    "unknown section": (
        "--optimizer.lr 1",
        "--optimizer.lr: there is no such option. Did you mean",
    ),
    "misspelled option": ("--rollout.temprature 1", "Did you mean --rollout.temperature?"),
    "misspelled short name": ("--estimater gae", "Did you mean --estimator?"),
    "dashes for underscores": ("--train.batch-size 8", "Did you mean --train.batch_size?"),
    "option without its section": (
        "--lr 1e-3",
        "Did you mean --actor.adam.lr or --critic.adam.lr?",
    ),
    "option of another framework": (
        "--actor_learning_rate 1",
        "--actor_learning_rate: there is no such option",
    ),
    "misspelled option of a component": (
        "--actor.adam.betass 0.9 0.9",
        "Did you mean --actor.adam.betas?",
    ),
    "section as an option": ("--train 3", "--train: 'train' is a section, not an option"),
    "option as a section": (
        "--train.steps.x 3",
        "--train.steps.x: 'train.steps' is an option, not a section",
    ),
    "selector as a section": (
        "--actor.optim.lr 1",
        "--actor.optim.lr: 'actor.optim' is an option, not a section",
    ),
    "component as an option": ("--actor.adam 1", "--actor.adam: 'actor.adam' is a section"),
    # components
    "unknown estimator": (
        "--estimator gea",
        "--estimator gea: no advantage estimator 'gea'. Did you mean 'gae'?",
    ),
    "unknown loss": ("--loss nope", "--loss nope: no policy loss 'nope'. Installed: "),
    "unknown reward": ("--reward nope", "--reward nope: no reward 'nope'"),
    "unknown runtime": ("--runtime slurm", "--runtime slurm: no runtime 'slurm'. Installed: local"),
    "unknown engine": ("--engine llama_cpp", "--engine llama_cpp: no engine"),
    "unknown backend": ("--backend tf", "--backend tf: no training backend"),
    "unknown optimizer": (
        "--optim adma",
        "--optim adma: no optimizer 'adma'. Did you mean 'adam'?",
    ),
    "unknown plugin": (
        "--estimator nobody:gae",
        "no advantage estimator 'nobody:gae'. Did you mean 'gae'?",
    ),
    "unknown filter": ("--rollout.filters x", "--rollout.filters x: no sample filter 'x'"),
    "unknown correction": (
        "--algo.correction.kind x",
        "--algo.correction.kind x: no IS correction 'x'",
    ),
    "unknown adapter": ("--actor.adapter lora9", "--actor.adapter lora9: no model adapter"),
    "two estimators": (
        "--estimator gae rloo",
        "--estimator: expected one value, got 2 (gae, rloo)",
    ),
    "no estimator": ("--estimator none", "--estimator: expected an advantage estimator"),
    "selector without a name": (
        "--estimator --seed 1",
        "--estimator: expected a value; installed: ",
    ),
    "option of an unselected component": (
        "--algo.advantage.gae.gamma 0.9",
        "--algo.advantage.gae.gamma: gae (rlhf-plugin-algorithms 0.1.0) is not selected; "
        "this run uses --estimator reinforce_baseline",
    ),
    # types and ranges
    "word for a number": ("--steps many", "--steps: expected a whole number, got 'many'"),
    "fraction for a count": ("--steps 1.5", "--steps: expected a whole number, got '1.5'"),
    "zero steps": ("--steps 0", "--steps: expected at least 1, got '0'"),
    "negative count": (
        "--rollout.batch_size -8",
        "--rollout.batch_size: expected at least 1, got '-8'",
    ),
    "negative seed": ("--seed -1", "--seed: expected at least 0"),
    "huge seed": ("--seed 99999999999999999999", "--seed: expected a value below"),
    "temperature of zero": (
        "--rollout.temperature 0",
        "--rollout.temperature: expected a value above 0",
    ),
    "not a number": ("--rollout.temperature nan", "--rollout.temperature: expected"),
    "infinity": ("--actor.adam.lr inf", "--actor.adam.lr: expected a finite number, got 'inf'"),
    "negative learning rate": (
        "--actor.adam.lr -1e-4",
        "--actor.adam.lr: expected a value above 0, got '-1e-4'",
    ),
    "share above one": ("--rollout.top_p 1.5", "--rollout.top_p: expected at most 1, got '1.5'"),
    "word for a switch": ("--data.chat maybe", "--data.chat: expected true or false, got 'maybe'"),
    "unknown choice": (
        "--algo.kl.tail k4",
        "--algo.kl.tail: expected 'linear' or 'clamp', got 'k4'",
    ),
    "misspelled choice": ("--algo.loss.aggregation token_mean", "Did you mean 'token-mean'?"),
    "number without a value": ("--seed --steps 3", "--seed: expected a value"),
    "two values for one": ("--seed 1 2", "--seed: expected one value, got 2 (1, 2)"),
    "a flag given twice": ("--seed 1 --seed 2", "expected one value, got 2 (1, 2); give it once"),
    "unquoted text": ("--data.template Q: {question} A:", "quote text that has spaces"),
    "list without a value": (
        "--rollout.stop --seed 1",
        "--rollout.stop: expected at least one value",
    ),
    "empty output": ("--output=", "--output: expected at least 1 character"),
    "none for what must be set": ("--seed none", "--seed: expected a whole number, got 'none'"),
    "too many betas": ("--actor.adam.betas 0.9 0.9 0.9", "--actor.adam.betas: expected"),
    "reward weight that is a word": (
        "--reward.score.weight heavy",
        "--reward.score.weight: expected a number",
    ),
    "reward timeout of zero": (
        "--reward.score.timeout_s 0",
        "--reward.score.timeout_s: expected a value above 0",
    ),
    # words
    "stray word": ("gae", "'gae': expected an option such as --model PATH"),
    "one dash": ("-seed 1", "-seed: expected an option"),
    "config without a file": ("-c", "-c: expected a TOML file"),
    "broken flag": ("--a..b 1", "--a..b: expected --section.option"),
    # contradictions
    "batch that does not divide": (
        "--train.batch_size 100",
        "--train.batch_size is 100: a step has",
    ),
    "batch that is too large": (
        "--train.batch_size 1000",
        "--train.batch_size is 1000, but a step has",
    ),
    "group of one": ("--rollout.n_samples_per_prompt 1", "needs at least 2"),
    "KL target without a coefficient": (
        "--algo.kl.target 1",
        "--algo.kl.target adapts --algo.kl.coef",
    ),
    "ineffective option": ("--algo.kl.estimator k3", "--algo.kl.estimator would change nothing"),
    "k1 as a loss": (
        "--algo.kl.coef 1 --algo.kl.mode loss",
        "--algo.kl.mode loss with --algo.kl.estimator k1",
    ),
    "best metric without evaluation": (
        "--checkpoint.best_metric x",
        "--checkpoint.best_metric x: there is no",
    ),
    "both kinds of evaluation": (
        "--eval.data rows.jsonl --eval.fraction 0.5",
        "--eval.data and --eval.fraction",
    ),
    "greedy pass at k": ("--eval.fraction 0.5 --eval.n_samples 4", "--eval.n_samples is 4"),
    "turns without an environment": (
        "--executor multi_turn",
        "--executor multi_turn needs 'environment'",
    ),
    "rewards at tokens and an estimator of whole samples": (
        "--estimator rloo --reward.score.step_rewards true",
        "--reward function needs 'credits_tokens': choose an estimator that credits rewards to tokens",
    ),
    "environment without turns": (
        "--env echo_after_hint",
        "--env echo_after_hint: --executor (default) single_turn",
    ),
    "no room to answer": (
        "--rollout.max_length 64",
        "--rollout.max_length is 64, but prompts may take",
    ),
    # files and folders
    "missing evaluation data": (
        "--eval.data gone.jsonl",
        "--eval.data gone.jsonl: there is no such file",
    ),
    "missing tokenizer": (
        "--model.tokenizer ./model",
        "--model.tokenizer ./model: expected a Transformers folder",
    ),
    "missing config file": ("-c gone.toml", "-c gone.toml: cannot read it: No such file"),
    "missing reward file": ("--reward gone.py:f", "--reward gone.py:f: cannot read 'gone.py'"),
    "missing reward function": ("--reward reward.py:scor", "Did you mean 'score'?"),
    "reward file without a function": (
        "--reward reward.py",
        "--reward reward.py: expected FILE.py:NAME",
    ),
    "column that no row has": (
        "--reward exact_match --reward.exact_match.label_key answr",
        "--reward.exact_match.label_key: exact_match reads the column 'answr', which no row of rows.jsonl has. "
        "Did you mean 'answer'?",
    ),
    "output that is a file": ("--output rows.jsonl", "--output rows.jsonl: expected a folder"),
    "output that is the model": (
        "--output model",
        "--output model: there is a model in this folder",
    ),
    "checkpoint that is not there": (
        "--resume ./gone",
        "--resume ./gone: expected auto, restart, or a checkpoint's folder",
    ),
}

FILES = {
    "not TOML": ("train = [", "-c run.toml: not valid TOML"),
    "unknown key": (
        "[train]\nstep = 3",
        "run.toml: train.step: there is no such option. Did you mean train.steps?",
    ),
    "unknown section": (
        "[trian]\nsteps = 3",
        "run.toml: trian.steps: there is no such option. Did you mean train.steps?",
    ),
    "short name": ('estimator = "gae"', "run.toml: estimator: there is no such option"),
    "quoted number": (
        '[train]\nsteps = "3"',
        "run.toml: train.steps: expected a number, without quotes, got '3'",
    ),
    "quoted switch": (
        '[data]\nchat = "true"',
        "run.toml: data.chat: expected true or false, without quotes",
    ),
    "switch for a number": (
        "[train]\nsteps = true",
        "run.toml: train.steps: expected a number, got True",
    ),
    "number for a text": (
        "[data]\nprompt_key = 3",
        "run.toml: data.prompt_key: expected text, got 3",
    ),
    "not a number": ("[rollout]\ntop_p = nan", "run.toml: rollout.top_p: expected"),
    "date": ("[train]\nsteps = 2024-01-01", "run.toml: train.steps: expected a whole number"),
    "unknown component": ('[engine]\nname = "x"', "run.toml: engine.name x: no engine 'x'"),
    "component that is a table": (
        "[algo.advantage.estimator]\nname = 'gae'",
        "is an option, not a section",
    ),
    "component that is a number": (
        "[engine]\nname = 3",
        "run.toml: engine.name: expected the name of an engine, got 3",
    ),
    "unknown key of a component": (
        "[actor.adam]\nlearn = 1",
        "run.toml: actor.adam.learn: there is no such option",
    ),
    "unknown section in a section": (
        "[actor.adamm]\nlr = 1",
        "run.toml: actor.adamm.lr: there is no such option",
    ),
    "list of tables": ("[[train]]\nsteps = 3", "run.toml: train: 'train' is a section"),
}


def assert_refused(code, err, part):
    assert code == 2, err
    assert err.startswith("error: "), err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 6, err
    assert part in err
    assert_says_where(err)


def assert_says_where(err):
    """A program gets the option or the file that the message begins with (``rlhf --errors json``)."""
    message = err.removeprefix("error: ").strip()
    found = report("ConfigError", message, 2)
    place = found.option or found.file or ""
    if message.startswith("'"):
        assert place == "", "a word that belongs to no option is quoted"
        return
    assert place, message
    assert message.removeprefix("-c ").startswith((place, f"{found.file}: {place}")), message


@pytest.mark.parametrize(("words", "part"), FLAGS.values(), ids=FLAGS)
def test_a_bad_command_line_is_refused(folder, rlhf, words, part):
    typed = words.split()
    replaced = [flag for flag in ("--model", "--data", "--reward") if flag in typed]
    complete = [
        word
        for flag, value in zip(COMPLETE[::2], COMPLETE[1::2], strict=True)
        if flag not in replaced
        for word in (flag, value)
    ]

    code, out, err = rlhf("train", *typed, *complete)

    assert_refused(code, err, part)
    assert out == ""


@pytest.mark.parametrize(("text", "part"), FILES.values(), ids=FILES)
def test_a_bad_file_is_refused(folder, rlhf, text, part):
    (folder / "run.toml").write_text(text)

    code, _, err = rlhf("train", "-c", "run.toml", *COMPLETE)

    assert_refused(code, err, part)


@pytest.mark.parametrize(
    ("missing", "part"),
    [
        ("--model", "--model: is required but not set; expected: folder or hub name"),
        ("--data", "--data: expected data files, or an environment"),
        ("--reward", "--reward: expected a reward, or an environment"),
    ],
)
def test_what_is_missing_is_asked_for(folder, rlhf, missing, part):
    at = COMPLETE.index(missing)

    code, _, err = rlhf("train", *COMPLETE[:at], *COMPLETE[at + 2 :])

    assert_refused(code, err, part)


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ("[data]\ntrain = []", "run.toml: data.train: expected data files, or an environment"),
        ("[reward]\nuse = []", "run.toml: reward.use: expected a reward, or an environment"),
    ],
)
def test_an_empty_list_is_named_as_it_was_written(folder, rlhf, section, part):
    (folder / "run.toml").write_text(section)
    at = COMPLETE.index("--data" if "data" in section else "--reward")

    code, _, err = rlhf("train", "-c", "run.toml", *COMPLETE[:at], *COMPLETE[at + 2 :])

    assert_refused(code, err, part)
    assert "got an empty list" in err


@pytest.mark.parametrize(
    ("flag", "value", "part"),
    [
        (
            "--model",
            "./gone",
            "--model ./gone: expected a Transformers folder or a hub name; there is no such folder",
        ),
        (
            "--model",
            "empty",
            "--model empty: expected a Transformers folder; it has no config.json",
        ),
        (
            "--model",
            "rows.jsonl",
            "--model rows.jsonl: expected a Transformers folder; this is a file",
        ),
        ("--data", "gone.jsonl", "--data gone.jsonl: there is no such file"),
        ("--data", "empty.csv", "--data empty.csv: the file is empty"),
        ("--data", "", "--data: expected data files"),
    ],
)
def test_files_that_are_not_there_are_named(folder, rlhf, flag, value, part):
    (folder / "empty").mkdir()
    (folder / "empty.csv").touch()
    words = list(COMPLETE)
    words[words.index(flag) + 1] = value

    code, _, err = rlhf("train", *words)

    assert_refused(code, err, part)


def test_a_used_run_folder_is_refused_before_anything_is_built(folder, rlhf):
    (folder / "runs" / "run" / "checkpoints").mkdir(parents=True)

    code, _, err = rlhf("train", *COMPLETE)

    assert_refused(code, err, "--output runs/run: a run is there already. Add --resume auto")


def test_every_flag_of_a_case_is_named_as_typed(folder, rlhf):
    code, _, err = rlhf("train", *COMPLETE, "--steps", "0", "--seed", "-1", "--actor.adam.lr", "x")

    assert code == 2
    assert all(flag in err for flag in ("--steps", "--seed", "--actor.adam.lr"))
