"""Imported for its effect: programs of ``experiments`` and ``benchmarks`` are then found."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "experiments", ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
