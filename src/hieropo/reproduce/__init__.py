"""The experiments of the HierOPO paper (arXiv 2212.04720), from one file of settings to tables and figures.

A run is one draw of everything that is random; it is made by a process of its own and depends on the seed, on what is
varied and on its number alone. Finished runs are written down as they come, so that the same command goes on where it
was ended.
"""
