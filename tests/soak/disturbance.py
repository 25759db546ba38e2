"""What goes wrong during the soak: workers are killed and stopped, and the settings change, at moments of a seed."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psutil

from tests.soak.served import Served

MOST_INSTANCES = 3


class Disturbance:
    """Disturbs a sidecar now and then."""

    def __init__(self, soaked: Served, dice: random.Random, every: float) -> None:
        self.done: Counter[str] = Counter()
        """How often each was done."""
        self._soaked = soaked
        self._dice = dice
        self._every = every
        self._ways: list[Callable[[], Awaitable[None]]] = [
            self.kill_a_worker,
            self.kill_a_worker,
            self.stop_a_worker,
            self.lose_the_attached_worker,
            self.change_the_instances,
            self.add_or_remove_a_worker,
            self.hang_up,
            self.make_a_mistake,
        ]

    async def run(self) -> None:
        """Disturbs until it is cancelled: in rounds of all ways, in an order of chance, so that none is left out."""
        while True:
            for way in self._dice.sample(self._ways, len(self._ways)):
                await asyncio.sleep(self._dice.uniform(0.5, 1.5) * self._every)
                await way()
                self.done[way.__name__] += 1

    async def calm(self) -> None:
        """Gives back the settings of the beginning."""
        self._soaked.instances, self._soaked.with_other = 2, True
        self._soaked.configure()

    async def kill_a_worker(self) -> None:
        """As a crash does, without a word."""
        self._send(signal.SIGKILL)

    async def stop_a_worker(self) -> None:
        """It neither works nor ends, until the sidecar gives it up for its unanswered pings."""
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        if workers := self._soaked.workers():
            with suppress(psutil.NoSuchProcess):
                self._dice.choice(workers).send_signal(number)

    async def lose_the_attached_worker(self) -> None:
        """It crashes or leaves in order, and another comes."""
        process = self._soaked.attached
        if process.returncode is None:
            process.send_signal(self._dice.choice((signal.SIGKILL, signal.SIGTERM)))
        await process.wait()
        await self._soaked.attach()

    async def change_the_instances(self) -> None:
        """All processes of the worker are replaced by others, more or fewer."""
        self._soaked.instances = self._soaked.instances % MOST_INSTANCES + 1
        self._change()

    async def add_or_remove_a_worker(self) -> None:
        """Its tool comes or goes."""
        self._soaked.with_other = not self._soaked.with_other
        self._change()

    async def hang_up(self) -> None:
        """Asks for a reload where nothing has changed."""
        os.kill(self._soaked.sidecar.pid, signal.SIGHUP)

    async def make_a_mistake(self) -> None:
        """Settings that cannot be used, which change nothing."""
        self._soaked.configure(mistaken=True)
        os.kill(self._soaked.sidecar.pid, signal.SIGHUP)

    def _change(self) -> None:
        self._soaked.configure()
        # Else it finds the change by itself.
        if self._dice.random() < 0.5:
            os.kill(self._soaked.sidecar.pid, signal.SIGHUP)
