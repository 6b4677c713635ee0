"""verl's ``main_ppo``: reinforcement learning."""
