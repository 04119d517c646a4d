from __future__ import annotations

import sys
from pathlib import Path

# The sandbox with the operator is the one of tests/cluster.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))
