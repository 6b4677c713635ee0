"""verl's trainers of given answers: ``sft_trainer`` and ``fsdp_sft_trainer``."""
