"""``rlhf dpo``: policies that learn from answers of which some were preferred, in pairs or one by one."""
