"""The command ``rlhf sft``: its options, its batches, its steps and its evaluation. Losses live one folder up."""
