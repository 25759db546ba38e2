"""An instance in a test's hands that keeps cleanups, and may be lost and come back."""

from typing import Any, Self

from sidecar._gen.pillion.v1.context_pb2 import TeardownScope
from sidecar._gen.pillion.v1.tool_pb2 import ToolDescriptor
from sidecar._gen.pillion.v1.worker_pb2 import CleanupCall, Reattach, Welcome
from tests.support.caller import CallerPeer
from tests.support.host import Host
from tests.support.tools import tool
from tests.support.worker import WorkerPeer

CLEANUP = CleanupCall(tool="put", arguments=b'{"n": 1.10}')


class Keeping:
    """An instance with one tool, whose cleanups name a call of `put`, unless another one is named, or none."""

    def __init__(self, worker: WorkerPeer, caller: CallerPeer, welcome: Welcome, kind: ToolDescriptor) -> None:
        self.worker, self.caller, self.welcome = worker, caller, welcome
        self._kind = kind

    @classmethod
    async def attach(cls, host: Host, name: str = "echo", of: str = "main", **fields: Any) -> Self:
        """A new one of this worker set. Fields are those of its tool."""
        worker, kind = await host.worker(), tool(name, **fields)
        return cls(worker, await host.caller(), await worker.hello(kind, worker=of), kind)

    async def keep(
        self,
        scope: "TeardownScope.ValueType" = TeardownScope.TEARDOWN_SCOPE_SESSION,
        *,
        name: str | None = None,
        cleanup: CleanupCall | None = CLEANUP,
        **start: Any,
    ) -> str:
        """Registers a cleanup, in a call that ends; answers its id."""
        call = await self.caller.start(self._kind.name, **({"session_id": "s"} | start))
        run = (await self.worker.next_invoke()).call
        accepted = await self.worker.registered(run, scope, name=name, cleanup_call=cleanup)
        await self.worker.result(run)
        await self.caller.outcome(call)
        return accepted.registration_id

    def lose(self) -> None:
        """Its stream is lost."""
        self.worker.cut()

    def again(self, *listed: str, secret: str | None = None) -> Reattach:
        """What it comes back with: these registrations, and its secret, or another."""
        return Reattach(
            instance_id=self.welcome.instance_id,
            secret=self.welcome.reattach_secret if secret is None else secret,
            registrations=listed,
        )

    async def back(self, host: Host, *listed: str) -> WorkerPeer:
        """The same instance on a new stream, with another caller; it still has these registrations."""
        self.worker, self.caller = await host.worker(), await host.caller()
        welcome = await self.worker.hello(self._kind, reattach=self.again(*listed))
        assert welcome.instance_id == self.welcome.instance_id
        return self.worker
