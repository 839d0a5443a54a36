"""Passes of an evaluation over a log: statistics and folds, actions of the policy, propensities."""
