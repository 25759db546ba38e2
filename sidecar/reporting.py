"""Metrics and traces, as far as the settings ask for them. What they need is imported only then."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from sidecar.calls.pipeline import Pipeline
from sidecar.config import ConfigRefused, Metrics, Settings, Tracing
from sidecar.telemetry.exposition import MetricsServer
from sidecar.telemetry.lag import LoopLag
from sidecar.telemetry.readings import Reading
from sidecar.wire.streams import Streams
from sidecar.workers.catalogue import Catalogue

_log = logging.getLogger(__name__)


@asynccontextmanager
async def reporting(
    settings: Settings, pipeline: Pipeline, catalogue: Catalogue, streams: Streams
) -> AsyncIterator[None]:
    """Measures and traces inside the block, as the settings say.

    :raises ConfigRefused: if a package is missing or an address cannot be had; the text says what to change.
    """
    async with AsyncExitStack() as running:
        if settings.tracing is not None:
            await _trace(settings.tracing, pipeline, running)
        if settings.metrics is not None:

            def read() -> Reading:
                return Reading(
                    in_flight=len(pipeline.running),
                    tools=len(catalogue.snapshot.tools),
                    generation=catalogue.generation,
                    sets=[workers.reading() for workers in catalogue.sets.values()],
                    streams=streams.reading(),
                )

            await _serve(settings.metrics, pipeline, read, running)
        yield


async def _trace(settings: Tracing, pipeline: Pipeline, running: AsyncExitStack) -> None:
    try:
        from sidecar.telemetry import traces
    except ModuleNotFoundError as error:
        raise _missing(error, "tracing", "telemetry") from None
    tracer = traces.OtlpTracer(
        settings.endpoint, settings.ratio, settings.service, pipeline.ids.process, pipeline.counters
    )
    running.push_async_callback(tracer.aclose)
    pipeline.tracer = tracer
    _log.info("spans of calls go to %s", settings.endpoint)


async def _serve(settings: Metrics, pipeline: Pipeline, read: Callable[[], Reading], running: AsyncExitStack) -> None:
    try:
        from sidecar.telemetry import metrics
    except ModuleNotFoundError as error:
        raise _missing(error, "metrics", "metrics") from None
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
            f"metrics.listen: {settings.listen} cannot be listened on: {error.strerror or error}; use another port."
        ) from None
    running.push_async_callback(server.aclose)
    measuring = asyncio.get_running_loop().create_task(lag.run())
    running.callback(measuring.cancel)
    _log.info("metrics at %s", address)


def _missing(error: ModuleNotFoundError, section: str, extra: str) -> ConfigRefused:
    return ConfigRefused(
        f"[{section}] needs the package {error.name}, which is not installed: pip install 'pillion-sidecar[{extra}]'."
    )
