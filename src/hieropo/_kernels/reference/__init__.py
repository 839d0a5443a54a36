"""The definition of every compiled loop, in plain numpy: short, without loops over rows, and used where work is small.

May import :mod:`hieropo._utils` and the layout of running sums.
"""
