"""The commands that train on examples: ``rlhf sft`` and ``rlhf dpo``.

``course`` has the steps that they share, ``sft`` and ``dpo`` the rows of each. Losses live one folder up.
"""
