"""Evaluation of a policy from a log: its value, its gain over the incumbent, and harm to tasks.

May import ``ope``, ``decisions``, ``doctor`` and below.
"""

from hieropo.evaluation.entry import best_pessimism, evaluated, subject_of
from hieropo.evaluation.evaluation import Evaluation
from hieropo.evaluation.parts.claims import Verdict
from hieropo.evaluation.pessimism import PessimismChoice

__all__ = ["Evaluation", "PessimismChoice", "Verdict", "best_pessimism", "evaluated", "subject_of"]
