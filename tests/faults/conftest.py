"""The helpers of the fault tests (`promises`, `toylog`) are imported by name, also by the child processes that they
start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
