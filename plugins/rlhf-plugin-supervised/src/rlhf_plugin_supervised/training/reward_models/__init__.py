"""Commands that train models which score: ``rlhf rm`` and ``rlhf prm``."""
