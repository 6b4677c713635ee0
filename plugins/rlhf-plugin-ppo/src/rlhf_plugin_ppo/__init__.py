"""PPO: generalized advantage estimation and the clipped policy loss."""
