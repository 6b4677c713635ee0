"""Of the environment, a process with code of others gets what it needs to run, and no secret."""

import os

import pytest

from rlhf_core.problem import Problem, ProblemKind
from rlhf_guard.processes.variables import with_hint, worker_variables

PASS = [
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV"),
    *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "TRANSFORMERS_OFFLINE"),
    *("TORCH_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "TOKENIZERS_PARALLELISM"),
    *("HTTP_PROXY", "https_proxy", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
]
STAY = [
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    *(
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    *(
        "RLHF_ENV_TOKEN",
        "RLHF_REWARD_TOKEN",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "SSH_AUTH_SOCK",
    ),
    *("MLFLOW_TRACKING_PASSWORD", "DATABASE_URL", "KUBECONFIG", "SLURM_JWT", "path"),
    *("HF_HUB_TOKEN", "TORCH_MY_SECRET", "PYTHON_KEYRING_PASSWORD", "NVIDIA_API_KEY"),
]


@pytest.mark.parametrize("name", PASS)
def test_what_a_program_needs_to_run_passes(monkeypatch, name):
    monkeypatch.setenv(name, "value")

    assert worker_variables()[name] == "value"


@pytest.mark.parametrize("name", STAY)
def test_a_secret_passes_by_its_name_alone(monkeypatch, name):
    monkeypatch.setenv(name, "value")

    assert name not in worker_variables()
    assert worker_variables([name])[name] == "value"


def test_a_name_that_is_not_set_is_left_out():
    assert "NOBODY_SETS_THIS" not in worker_variables(["NOBODY_SETS_THIS"])
    assert worker_variables().items() <= os.environ.items()


def test_a_problem_gets_a_hint_for_a_variable_that_was_held_back_alone(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "value")
    problem = Problem(kind=ProblemKind.RAISED, text="raised KeyError: 'SOME_KEY'")
    other = Problem(kind=ProblemKind.RAISED, text="raised KeyError: 'SOME_KEY_2'")

    assert "name it in pass_env" in with_hint(problem, {}).text
    assert with_hint(problem, {"SOME_KEY": "value"}) is problem
    assert with_hint(other, {}) is other
