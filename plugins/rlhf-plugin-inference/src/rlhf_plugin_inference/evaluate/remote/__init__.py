"""An OpenAI-compatible server in the model's place: messages go there, and answers come back as text.

No tokens are known here. Rewards see empty ``token_ids``, and an environment whose observations are token ids is
refused.
"""
