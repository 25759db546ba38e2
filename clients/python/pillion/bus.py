"""The words of the bus, as tools meet them in `ToolContext.kv`, `pubsub` and `jobs`."""

from pillion._worker.bus import BusLevel, Lagged, Message, PubSub, Subscription
from pillion._worker.jobs import Enqueued, Job, Jobs
from pillion._worker.kv import Expectation, Kv, KvChange, KvEntry, Lease

__all__ = (
    "BusLevel",
    "Enqueued",
    "Expectation",
    "Job",
    "Jobs",
    "Kv",
    "KvChange",
    "KvEntry",
    "Lagged",
    "Lease",
    "Message",
    "PubSub",
    "Subscription",
)
