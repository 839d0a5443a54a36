"""Uncertainty of hyper-parameters: mixtures of hierarchies, first-order corrections, intervals."""
