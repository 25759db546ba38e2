"""Lets in who is known, and no exception text out."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from sidecar.doors.access import Access, TurnedAway
from sidecar.telemetry import Counters

_log = logging.getLogger(__name__)

_MESSAGE = "The sidecar failed; its log says why."
_NOT_READ = "The request could not be read; it is not the message that this method takes."
_UNREADABLE = object()
"""Stands for a request that could not be read: gRPC would tell the peer how its reading failed."""


_Admit = Callable[[Any], Awaitable[None]]

# Whether a sidecar serves is for load balancers and probes to see, which have no token.
_OPEN = "/grpc.health.v1.Health/"


class Guard(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server, whoever wrote it.

    Who is not known is refused before anything is read, but for health. A failure is logged here and told without its
    text. `refusals` is the name by which those who were refused are counted.
    """

    def __init__(self, access: Access, refusals: str, counters: Counters) -> None:
        self._access = access
        self._refusals = refusals
        self._counters = counters

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of a method, wrapped; `None` where there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        admit = _pass if handler_call_details.method.startswith(_OPEN) else self._admit
        codec = {
            "request_deserializer": _tolerant(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            if handler.request_streaming:
                return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream, admit), **codec)
            return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream, admit), **codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._unary(handler.stream_unary, admit), **codec)
        return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary, admit), **codec)

    async def _admit(self, context: Any) -> None:
        try:
            away = await self._access.turned_away(context)
        except Exception:
            # Who cannot be looked at is not let in.
            self._count()
            away = TurnedAway(_MESSAGE, grpc.StatusCode.INTERNAL)
        if away is not None:
            self._counters.add(self._refusals)
            await context.abort(away.code, away.message)

    def _unary(self, behaviour: Callable[..., Awaitable[Any]], admit: _Admit) -> Callable[..., Awaitable[Any]]:
        async def guarded(request: Any, context: Any) -> Any:
            await admit(context)
            if request is _UNREADABLE:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NOT_READ)
            try:
                return await behaviour(request, context)
            except (grpc.aio.AbortError, asyncio.CancelledError):
                raise
            except Exception:
                self._count()
            return await context.abort(grpc.StatusCode.INTERNAL, _MESSAGE)

        return guarded

    def _stream(self, behaviour: Callable[..., Any], admit: _Admit) -> Callable[..., Any]:
        if not inspect.isasyncgenfunction(behaviour):

            async def guarded(request: Any, context: Any) -> None:
                await admit(context)
                if request is _UNREADABLE:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NOT_READ)
                try:
                    await behaviour(request, context)
                except (grpc.aio.AbortError, asyncio.CancelledError):
                    raise
                except Exception:
                    self._count()
                    context.set_code(grpc.StatusCode.INTERNAL)
                    context.set_details(_MESSAGE)

            return guarded

        async def guarded_iterator(request: Any, context: Any) -> AsyncIterator[Any]:
            await admit(context)
            if request is _UNREADABLE:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NOT_READ)
            try:
                async for message in behaviour(request, context):
                    yield message
            except (grpc.aio.AbortError, asyncio.CancelledError):
                raise
            except Exception:
                self._count()
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details(_MESSAGE)

        return guarded_iterator

    def _count(self) -> None:
        self._counters.add("internal_errors")
        _log.exception("a handler failed")


async def _pass(_context: Any) -> None:
    """Lets in whoever it is."""


def _tolerant(deserialise: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A deserialiser that does not raise."""
    if deserialise is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialise(data)
        except Exception:
            return _UNREADABLE

    return read
