"""Predictive checks: rewards against their prediction, and the faults that they show."""
