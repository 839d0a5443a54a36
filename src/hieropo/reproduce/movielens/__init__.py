"""The experiments of the paper on MovieLens-1M: ratings, factors, clusters."""
