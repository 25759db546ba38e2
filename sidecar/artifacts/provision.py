"""Gives the tools of a sidecar its artifact store."""

from sidecar.artifacts.placement import Placement
from sidecar.artifacts.port import ArtifactStore
from sidecar.artifacts.requests import ArtifactRequests
from sidecar.artifacts.tokens import CallTokens
from sidecar.artifacts.transfers import Transfers
from sidecar.artifacts.wants import Wants
from sidecar.calls.pipeline import Pipeline


def provide(
    pipeline: Pipeline, store: ArtifactStore, transfers: Transfers, *, inline_bytes: int, frame_bytes: int
) -> CallTokens:
    """Has calls redeem what their tools want, answer what these ask, and place what they return.

    Payloads of at most `inline_bytes` ride inside frames, which have at most `frame_bytes`; others go by tokens of
    `transfers`. Answers the tokens of calls, which are to be settled before the store is closed.
    """
    tokens = CallTokens(transfers, store)
    wants = Wants(store, tokens, inline_bytes=inline_bytes, frame_bytes=frame_bytes)
    requests = ArtifactRequests(store, tokens, inline_bytes=inline_bytes, frame_bytes=frame_bytes)
    pipeline.suppliers["wants"] = wants
    pipeline.responders |= requests.responders
    pipeline.placer = Placement(store)
    pipeline.has_artifacts = True
    return tokens
