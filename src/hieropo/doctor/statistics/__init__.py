"""Statistics that the doctor collects in its pass: kinds of numbers, extremes, repeated rows, times."""
