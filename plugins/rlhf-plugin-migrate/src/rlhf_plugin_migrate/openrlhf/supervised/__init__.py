"""``train_sft``, ``train_rm`` and ``train_dpo``, which become configurations of ``rlhf sft``, ``rm`` and ``dpo``."""
