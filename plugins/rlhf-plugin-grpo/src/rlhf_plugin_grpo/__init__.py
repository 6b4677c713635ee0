"""Group-relative advantage estimators: GRPO and Dr. GRPO."""
