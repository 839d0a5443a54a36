"""Vowpal Wabbit: its text and JSON logs as rows, and logs written for it."""
