"""What a tool registers for the end of a scope, as the sidecar is asked for it."""

from pillion import _json
from pillion._facts import TeardownScope
from pillion._gen.pillion.v1.worker_pb2 import CleanupCall, RegisterTeardown
from pillion._worker.port import Cleanup

_PAIR = 2


def registration_of(
    cleanup: Cleanup,
    scope: TeardownScope,
    name: str | None,
    label: str | None,
    cleanup_call: object,
) -> RegisterTeardown:
    """The request, of what could run when its time comes.

    :raises TypeError: if this is no cleanup, no scope, or no pair of a tool and its arguments.
    """
    if not callable(cleanup):
        raise TypeError("The cleanup is a function of the reason: give the function, and not what calling it made.")
    registration = RegisterTeardown(name=name, label=label)
    registration.scope = scope_of(scope).value  # type: ignore[assignment]  # the same numbers
    if cleanup_call is not None:
        if not isinstance(cleanup_call, tuple) or len(cleanup_call) != _PAIR:
            raise TypeError('The cleanup call is a tool and its arguments, such as ("give_back", {"machine": "m-1"}).')
        tool, arguments = cleanup_call
        encoded = None if arguments is None else _json.encode_arguments(arguments)
        registration.cleanup_call.CopyFrom(CleanupCall(tool=tool, arguments=encoded))
    return registration


def scope_of(scope: TeardownScope) -> TeardownScope:
    """The same.

    :raises TypeError: if it is a text or anything else that is no scope.
    """
    if not isinstance(scope, TeardownScope):
        raise TypeError("The scope is a TeardownScope, such as TeardownScope.SESSION.")
    return scope
