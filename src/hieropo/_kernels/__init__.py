"""Compiled loops: the pass over rows, the steps up and down the tree of tasks, choices, ids.

May import :mod:`hieropo._utils` and errors. Arrays of numpy go in and come out; a kernel knows no type of hieropo.
"""
