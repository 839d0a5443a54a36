"""Vectors of doubles as numba sees them: lanes, memory by its address, and LLVM code that is written directly."""
