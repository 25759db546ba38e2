"""Cleanups that wait for the end of a scope, pins, and the instances that both are with, in SQLite."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidecar._gen.pillion.v1.context_pb2 import TeardownReason, TeardownScope
from sidecar.calls.stores import Pin
from sidecar.scope import (
    Address,
    CleanupCall,
    Kept,
    KeptInstance,
    KeptPin,
    KeptRegistration,
    Principal,
    Registration,
    ScopeKey,
)
from sidecar.storage.database import Database
from sidecar.storage.owners import owner_of, stored

_ADD_INSTANCE = """
    INSERT INTO teardown_instance (worker, instance, secret, returns) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_INSTANCE = "SELECT id FROM teardown_instance WHERE worker = ? AND instance = ?"
_ADD = """
    INSERT INTO teardown_registration
        (registration, instance, scope, tenant, subject, fact, tool, name, label, cleanup_tool, cleanup_arguments,
        cleanup_caller, cleanup_caller_authenticated)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_CLAIM = "UPDATE teardown_registration SET reason = ? WHERE registration = ?"
_REMOVE = "DELETE FROM teardown_registration WHERE registration = ?"
_PIN = """
    INSERT INTO teardown_pin (scope, tenant, subject, fact, instance) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""
_UNPIN = """
    DELETE FROM teardown_pin WHERE scope = ? AND tenant = ? AND subject = ? AND fact = ?
        AND instance IN (SELECT id FROM teardown_instance WHERE worker = ?)
"""
_INSTANCES = "SELECT worker, instance, secret, returns FROM teardown_instance ORDER BY id"
_REGISTRATIONS = """
    SELECT registration, teardown_instance.instance, worker, scope, tenant, subject, fact, tool, name, label,
        reason, cleanup_tool, cleanup_arguments, cleanup_caller, cleanup_caller_authenticated
    FROM teardown_registration JOIN teardown_instance ON teardown_instance.id = teardown_registration.instance
    ORDER BY teardown_registration.id
"""
_PINS = """
    SELECT scope, tenant, subject, fact, worker, teardown_instance.instance
    FROM teardown_pin JOIN teardown_instance ON teardown_instance.id = teardown_pin.instance
    ORDER BY teardown_pin.id
"""

_NO_CLEANUP = (None, None, None, None)


class SqliteTeardownStore:
    """Keeps what has to be there after the sidecar was killed. A registration store, and one of pins.

    An instance is kept as long as there is a cleanup or a pin of it. Each method raises `StoreUnavailable` if the
    database cannot answer.
    """

    def __init__(self, database: Database, instance: Callable[[str, str], KeptInstance]) -> None:
        """`instance`: what is to be known of an instance, by its worker set and its id."""
        self._database = database
        self._instance = instance

    async def load(self) -> Kept:
        """All that is kept, by a sidecar that has just begun."""

        def operation(connection: sqlite3.Connection) -> Kept:
            return Kept(
                tuple(
                    KeptInstance(worker, instance, secret, bool(returns))
                    for worker, instance, secret, returns in connection.execute(_INSTANCES)
                ),
                tuple(map(_registration, connection.execute(_REGISTRATIONS))),
                tuple(map(_pin, connection.execute(_PINS))),
            )

        return await self._database.read(operation)

    async def add(self, registration: Registration) -> None:
        """Keeps a registration. Synced on return."""
        instance = self._instance(registration.worker, registration.instance_id)
        cleanup = registration.cleanup
        row = (
            *_scope(registration.key),
            registration.address.tool,
            registration.address.name,
            registration.label,
            *(_cleanup(cleanup) if cleanup is not None else _NO_CLEANUP),
        )

        def operation(connection: sqlite3.Connection) -> None:
            connection.execute(_ADD, (registration.id, _kept(connection, instance), *row))

        await self._database.write(operation)

    async def claim(self, registrations: Sequence[Registration], reason: "TeardownReason.ValueType") -> None:
        """Records that they are about to fire, and why. Synced on return."""
        rows = [(int(reason), registration.id) for registration in registrations]
        await self._database.write(lambda connection: connection.executemany(_CLAIM, rows).close())

    async def unclaim(self, registrations: Sequence[Registration]) -> None:
        """Records that they did not fire after all. Synced on return."""
        rows = [(None, registration.id) for registration in registrations]
        await self._database.write(lambda connection: connection.executemany(_CLAIM, rows).close())

    async def remove(self, registrations: Sequence[Registration]) -> None:
        """Forgets registrations; one that is unknown is passed over. Synced on return."""
        rows = [(registration.id,) for registration in registrations]
        await self._database.write(lambda connection: connection.executemany(_REMOVE, rows).close())

    async def pin(self, pins: Mapping[Pin, str | None]) -> None:
        """Has each scope pinned to this instance alone, for the calls of a worker set, or to none. Synced on return."""
        rows = [
            (key, worker, self._instance(worker, instance_id) if instance_id is not None else None)
            for (key, worker), instance_id in pins.items()
        ]

        def operation(connection: sqlite3.Connection) -> None:
            for key, worker, instance in rows:
                connection.execute(_UNPIN, (*_scope(key), worker))
                if instance is not None:
                    connection.execute(_PIN, (*_scope(key), _kept(connection, instance)))

        await self._database.write(operation)


def _kept(connection: sqlite3.Connection, instance: KeptInstance) -> int:
    """The row of an instance, which is made if there is none."""
    connection.execute(_ADD_INSTANCE, (instance.worker, instance.id, instance.digest, int(instance.returns)))
    (row,) = connection.execute(_INSTANCE, (instance.worker, instance.id)).fetchone()
    return int(row)


def _scope(key: ScopeKey) -> tuple[int, str, str, str]:
    return (int(key.kind), *stored(key.owner), key.fact)


def _cleanup(cleanup: CleanupCall) -> tuple[str, bytes, str, int]:
    return cleanup.tool, cleanup.arguments, cleanup.caller.name, int(cleanup.caller.authenticated)


def _key(scope: "TeardownScope.ValueType", tenant: str, subject: str, fact: str) -> ScopeKey:
    return ScopeKey(scope, owner_of(tenant, subject), fact)


def _registration(row: tuple[Any, ...]) -> KeptRegistration:
    number, instance_id, worker, scope, tenant, subject, fact, tool, name, label, reason, *cleanup = row
    registration = Registration(
        number,
        Address(_key(scope, tenant, subject, fact), instance_id, tool, name),
        worker,
        label,
        _cleanup_of(*cleanup) if cleanup[0] is not None else None,
    )
    registration.is_stored = True
    return KeptRegistration(registration, reason)


def _cleanup_of(tool: str, arguments: bytes, caller: str, authenticated: int) -> CleanupCall:
    return CleanupCall(tool, arguments, Principal(caller, bool(authenticated)))


def _pin(row: tuple[Any, ...]) -> KeptPin:
    scope, tenant, subject, fact, worker, instance_id = row
    return KeptPin(_key(scope, tenant, subject, fact), worker, instance_id)
