"""Losses that imitate: supervised fine-tuning as a term of a run, and on-policy distillation from a teacher."""
