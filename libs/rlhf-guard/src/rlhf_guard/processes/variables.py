"""Environment variables that a process beside the run gets: those on a list, and those that an option names.

The environment of a run holds keys of other services (``WANDB_API_KEY``, ``HF_TOKEN``, a cloud's). Rewards,
environments and agents run code of others, or on what a policy wrote, and get none of them unless ``pass_env`` says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rlhf_core.problem import Problem

NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TERM", "TZ"),
        *("TMPDIR", "TMP", "TEMP", "LANG", "LANGUAGE"),
        *(
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "LD_LIBRARY_PATH",
            "LD_PRELOAD",
            "CUBLAS_WORKSPACE_CONFIG",
        ),
        *("HF_HOME", "HF_ENDPOINT", "HF_ASSETS_CACHE", "HF_XET_CACHE", "TOKENIZERS_PARALLELISM"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM", "NLTK_DATA", "RLHF_PLUGINS", "RLHF_CACHE"),
    }
)
"""Names that pass, in upper case; a proxy's name passes in lower case too."""
FAMILIES = (
    *("LC_", "XDG_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "MALLOC_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "HIP_", "ROCR_", "ROCM_", "TORCH", "PYTORCH_"),
    *("TRITON_", "TF_", "JAX_", "XLA_", "HF_HUB_", "HF_DATASETS_", "TRANSFORMERS_", "SDL_"),
)
"""Beginnings of names that pass, unless a word of the name says that it is a secret."""
SECRET = re.compile(r"(?:^|_)(?:TOKENS?|SECRETS?|PASSWORD|PASSWD|KEYS?|CREDENTIALS?|AUTH)(?:_|$)")
"""Words of a name that say so."""


def worker_variables(also: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of this process that a process with code of others gets.

    Args:
        also: names that pass too; one that is not set here is left out.
    """
    named = frozenset(also)
    return {name: value for name, value in os.environ.items() if name in named or _is_usual(name)}


def with_hint(problem: Problem, given: Mapping[str, str]) -> Problem:
    """Return the problem, with the way out if it names a variable that its process was not given.

    Args:
        given: the variables of that process.
    """
    words = set(re.findall(r"\w+", problem.text))
    for name in sorted(words & (os.environ.keys() - given.keys())):
        hint = f" (its process gets few variables, and {name} is none of them: name it in pass_env)"
        return replace(problem, text=problem.text + hint)
    return problem


def _is_usual(name: str) -> bool:
    if name.upper() in NAMES and (name.isupper() or name.endswith("_proxy")):
        return True
    return name.startswith(FAMILIES) and SECRET.search(name) is None
