"""Entry point of ``python -m rlhf_cli``, which is the command ``rlhf``."""

import sys

from .main import main

sys.exit(main())
