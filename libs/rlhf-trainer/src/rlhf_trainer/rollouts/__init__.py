"""From prompts to scored groups of episodes, in this process or in others.

Modules here draw prompts, play and score their episodes, and filter and replace groups. Nothing here sees a gradient
or an advantage: that is ``rlhf_trainer.learning``.
"""
