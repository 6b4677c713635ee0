"""Commands that imitate given texts: ``rlhf sft``."""
