"""Files of TRL: a table of keys for GRPO, and the rules by which several keys act together."""
