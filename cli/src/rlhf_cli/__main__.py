"""``python -m rlhf_cli`` is ``rlhf``."""

import sys

from .main import main

sys.exit(main())
