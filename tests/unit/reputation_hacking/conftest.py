import sys
from pathlib import Path

# The fake engine lives with the actor's tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "actor"))
