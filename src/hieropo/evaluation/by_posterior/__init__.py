"""Values under the posterior: distributions of sums over tasks, harm, and the bounds of the paper."""
