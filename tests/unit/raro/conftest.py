import sys
from pathlib import Path

# The harness lies beside its tests.
sys.path.insert(0, str(Path(__file__).parent))
