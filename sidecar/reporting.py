"""Metrics and traces, as far as the settings ask for them. What they need is imported only then."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

import anyio

from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Metrics, Settings, Tracing
from sidecar.telemetry.exposition import MetricsServer
from sidecar.telemetry.lag import LoopLag
from sidecar.telemetry.logs import lost_lines
from sidecar.telemetry.readings import Reading
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue

_log = logging.getLogger(__name__)

_PACKAGES = {
    "metrics": ("prometheus_client", "metrics"),
    "tracing": ("opentelemetry.exporter.otlp.proto.grpc", "telemetry"),
}
"""By section of the settings: the package that it needs, and the extra that brings it."""


def lacking(settings: Settings) -> list[str]:
    """A sentence for each package that the settings need and that is not installed."""
    return [
        f"[{section}] needs {package}, which is not installed: pip install 'pillion-sidecar[{extra}]'."
        for section, (package, extra) in _PACKAGES.items()
        if getattr(settings, section) is not None and not _is_installed(package)
    ]


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        # Nor is what it is in.
        return False


@asynccontextmanager
async def reporting(
    settings: Settings, pipeline: Pipeline, catalogue: Catalogue, streams: Streams
) -> AsyncIterator[None]:
    """Measures and traces inside the block, as the settings say.

    :raises ConfigRefused: if a package is missing or an address cannot be had; the text says what to change.
    """
    for sentence in lacking(settings):
        raise ConfigRefused(sentence)
    running = AsyncExitStack()
    try:
        if settings.tracing is not None:
            await _trace(settings.tracing, pipeline, running)
        if settings.metrics is not None:

            def read() -> Reading:
                return Reading(
                    in_flight=len(pipeline.running),
                    tools=len(catalogue.snapshot.tools),
                    generation=catalogue.snapshot.generation,
                    tasks=len(asyncio.all_tasks()),
                    scopes=len(pipeline.teardowns.registry),
                    registrations=pipeline.teardowns.registry.registrations,
                    sets=[workers.reading() for workers in catalogue.sets.values()],
                    streams=streams.reading(),
                    lost_log_lines=lost_lines(),
                )

            await _serve(settings.metrics, pipeline, read, running)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await running.aclose()


async def _trace(settings: Tracing, pipeline: Pipeline, running: AsyncExitStack) -> None:
    from sidecar.telemetry import traces

    tracer = traces.OtlpTracer(
        settings.endpoint, settings.ratio, settings.service, pipeline.ids.process, pipeline.counters
    )
    running.push_async_callback(tracer.aclose)
    pipeline.tracer = tracer
    _log.info("spans of calls go to %s", settings.endpoint)


async def _serve(settings: Metrics, pipeline: Pipeline, read: Callable[[], Reading], running: AsyncExitStack) -> None:
    from sidecar.telemetry import metrics

    lag = LoopLag()
    measured = metrics.Metrics(pipeline.counters, pipeline.durations, lag.durations, read)

    async def page(accept: str) -> tuple[str, bytes]:
        # Read where it changes, and made a text of elsewhere: that takes milliseconds and reads files.
        return await asyncio.to_thread(metrics.render, measured.page(), accept)

    server = MetricsServer(page, pipeline.counters)
    try:
        address = await server.open(*settings.place)
    except OSError as error:
        raise ConfigRefused(
            f"metrics.listen {settings.listen} cannot be listened on: {error.strerror or error}; use another port."
        ) from None
    running.push_async_callback(server.aclose)
    measuring = asyncio.get_running_loop().create_task(lag.run())
    running.callback(measuring.cancel)
    _log.info("metrics at %s", address)
