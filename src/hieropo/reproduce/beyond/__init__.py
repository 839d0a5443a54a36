"""Experiments beyond the paper, in its settings."""
