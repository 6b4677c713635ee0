"""REINFORCE, REINFORCE++-baseline and RLOO advantage estimators."""
