"""Rows that cannot be used: found, set aside, counted by reason, and listed in a file."""
