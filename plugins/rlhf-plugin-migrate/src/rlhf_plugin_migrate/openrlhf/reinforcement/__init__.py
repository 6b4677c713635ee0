"""``train_ppo_ray``, which becomes a configuration of ``rlhf train``."""
