"""Slow, independent truths, written from definitions and sharing no code with the package."""
