"""Sums that a warehouse computes: their SQL text, and moments of the table that it returns."""
