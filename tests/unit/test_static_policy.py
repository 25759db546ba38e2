"""Rules as the settings have them, and those whom no rule is about."""

import pytest

from sidecar._gen.pillion.v1.context_pb2 import Identity
from sidecar.policy import Decision, Rule, StaticPolicy
from sidecar.scope import Principal, local_principal, scope_of

ALLOWED, LISTED, DENIED = Decision(True, True), Decision(False, True), Decision(False, False)
ANYTHING = Rule("*", ["*"], ["*"], ["*"])
LOCAL = local_principal(1000)


def decided(policy: StaticPolicy, who: Principal, tool: str = "echo", **identity: str) -> Decision:
    """What it says, asked twice: what it remembers says the same."""
    scope = scope_of(who, Identity(**identity) if identity else None, None, None, "exe")
    first = policy.decide(who, scope, tool)
    assert policy.decide(who, scope, tool) == first
    return first


def test_no_rule_is_about_who_is_not_authenticated() -> None:
    policy = StaticPolicy((), [ANYTHING])
    assert decided(policy, Principal("token:a", authenticated=True)) == ALLOWED
    for name in ("nobody", "local:1000", "*", ""):
        assert decided(policy, Principal(name, authenticated=False)) == DENIED


def test_who_is_unrestricted_may_do_everything_until_a_rule_names_it() -> None:
    policy = StaticPolicy((LOCAL.name,))
    assert decided(policy, LOCAL, tenant="any", principal="any") == ALLOWED
    assert decided(policy, local_principal(1001)) == DENIED
    policy.replace([Rule(LOCAL.name, ["read"])])
    assert decided(policy, LOCAL) == DENIED
    assert decided(policy, LOCAL, "read") == ALLOWED
    assert decided(policy, LOCAL, "read", tenant="any") == LISTED
    policy.replace([Rule("local:*", ["read"])])
    assert decided(policy, LOCAL) == ALLOWED


@pytest.mark.parametrize(
    ("pattern", "name", "is_meant"),
    [
        ("token:*", "token:a", True),
        ("token:*", "mtls:token", False),
        ("token:a", "token:ab", False),
        ("spiffe://prod/ns/*", "spiffe://prod/ns/a/b", True),
        ("spiffe://prod/ns/*", "spiffe://prod/nsx", False),
        ("*", "spiffe://prod/ns/a", True),
    ],
)
def test_a_principal_may_be_left_open_at_its_end(pattern: str, name: str, is_meant: bool) -> None:
    policy = StaticPolicy((), [Rule(pattern, ["*"])])
    assert decided(policy, Principal(name, authenticated=True)) == (ALLOWED if is_meant else DENIED)


def test_however_many_ask_each_is_decided_by_its_own_rules() -> None:
    policy = StaticPolicy((LOCAL.name,), [Rule("mtls:host-7", ["echo"])])
    for number in range(3_000):
        principal = Principal(f"mtls:host-{number}", authenticated=True)
        assert decided(policy, principal) == (ALLOWED if number == 7 else DENIED)
    assert decided(policy, LOCAL) == ALLOWED
    assert len(policy._known) <= 1_024


def test_who_may_act_for_somebody_with_any_tool_is_admitted_for_them_and_for_nobody_else() -> None:
    caller = Principal("token:a", authenticated=True)
    policy = StaticPolicy(
        (LOCAL.name,), [Rule("token:a", ["read"], ["acme"], ["ann", "team-*"]), Rule("token:b", ["*"])]
    )

    def admitted(who: Principal, **identity: str) -> bool:
        return policy.admits(who, scope_of(who, Identity(**identity), None, "run", "exe"))

    assert admitted(caller, tenant="acme", principal="ann")
    assert admitted(caller, tenant="acme", principal="team-1")
    for other in (
        {},
        {"tenant": "acme"},
        {"principal": "ann"},
        {"tenant": "acme", "principal": "bob"},
        {"tenant": "ACME"},
    ):
        assert not admitted(caller, **other)
    assert admitted(Principal("token:b", authenticated=True))
    assert not admitted(Principal("token:b", authenticated=True), tenant="acme")
    assert not admitted(Principal("token:a", authenticated=False), tenant="acme", principal="ann")
    assert admitted(LOCAL, tenant="any", principal="any")
