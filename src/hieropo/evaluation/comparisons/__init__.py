"""Policies to compare with: one action for all, pooled, separate, named ones, and policies learned without a fold."""
