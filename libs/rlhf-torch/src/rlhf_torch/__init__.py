"""Causal language models on torch, as training backends and engines need them: packed, read, trained, saved.

A training backend of a third party builds on this library, as ``rlhf-plugin-local`` and ``rlhf-plugin-fsdp`` do.
The modules below are its public API; a name that begins with an underscore is not. docs/writing-a-backend.md shows the
way through it.
"""

import logging

# bitsandbytes, which PEFT imports, warns on some CPUs of a kernel that it would download, whether or not it is used.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
