"""What makes calls fail: for each row of the table of causes in docs/protocol.md a scenario that drives it."""

from tests.integration.causes import artifacts, detached, gates, keys, outcomes, running, waiting
from tests.integration.causes.stage import SCENARIOS, Stage

__all__ = ("SCENARIOS", "Stage", "artifacts", "detached", "gates", "keys", "outcomes", "running", "waiting")
