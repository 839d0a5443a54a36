"""Pure mathematics: immutable values in, immutable values out; numpy, scipy and numba only."""
