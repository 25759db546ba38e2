"""The catalogue of tools, as others wait for it to change."""

import asyncio

from tests.support import MemoryHost, attach


async def test_a_change_between_a_look_and_the_wait_is_not_missed(memory_host: MemoryHost) -> None:
    await attach(memory_host)
    catalogue = memory_host.catalogue
    workers = catalogue.sets["main"]
    (instance,) = workers.instances.values()
    change = asyncio.ensure_future(catalogue.changed())
    # Before anybody else runs: as where one message brings two changes.
    workers.quarantine(instance)
    async with asyncio.timeout(5):
        await change


async def test_whoever_gives_up_a_wait_takes_it_from_nobody_else(memory_host: MemoryHost) -> None:
    first, second = (memory_host.catalogue.changed() for _ in range(2))
    first.cancel()
    await attach(memory_host)
    async with asyncio.timeout(5):
        await second
