"""Formats of files: Parquet, CSV, JSON lines and Arrow, the paths that name them, and the types of text columns."""
