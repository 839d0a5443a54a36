"""The experiments of the HierOPO paper (arXiv 2212.04720), from one file of settings to tables and figures.

A run is one draw of all random quantities. Runs are made in parallel processes; a run depends on the seed, on the
varied quantities and on its number alone. Finished runs are written at once, so that the same command continues where
it ended.
"""
