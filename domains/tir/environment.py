"""The environment of upstream's `tir`. The sandbox needs no server here, so what it serves is the judge."""

from domains.math.environment import MathEnvironment


class MCPPythonEnvironment(MathEnvironment):
    """`MathEnvironment` under upstream's name; programs run in each actor worker's own sandbox."""
