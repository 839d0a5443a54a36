"""The passes of an evaluation over a log: its sums, the folds, the judged rows, the propensities."""
