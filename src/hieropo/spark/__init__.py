"""Moments, fits and decisions on Spark: sums by workers into shards on disk, and a policy that each worker maps.

``pip install 'hieropo[spark]'`` brings PySpark 4; it needs a Java runtime (17 or newer). hieropo must be installed on
every worker, in an environment that is packed and shipped (``venv-pack``, ``conda-pack``) or part of their image. Only
DataFrames are used.
"""

from hieropo.spark.deciding import decide
from hieropo.spark.evaluating import evaluate
from hieropo.spark.examining import doctor
from hieropo.spark.fitting import fit
from hieropo.spark.moments import moments

__all__ = ["decide", "doctor", "evaluate", "fit", "moments"]
