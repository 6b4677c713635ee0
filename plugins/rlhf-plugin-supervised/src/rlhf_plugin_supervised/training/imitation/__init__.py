"""Commands that imitate: ``rlhf sft`` given texts, ``rlhf distill`` a teacher's distribution on them."""
