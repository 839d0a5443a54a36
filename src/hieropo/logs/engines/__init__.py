"""Rows that another engine holds: tables and frames in memory, streams, databases."""
