"""Functions of users in Python as rewards (docs/rewards_in_python.md). `worker` is the process that Tandem starts;
`functions` loads what a run file names, `call` calls it, `math` is the component of that name. `Reward` is a base for
rewards that are classes. Needs the standard library alone."""
from .base import Detailed, Reward, Score

__all__ = ["Detailed", "Reward", "Score"]
