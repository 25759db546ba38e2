"""The policy of the settings: rules for those they name, everything for the local user, nothing for anybody else."""

from collections.abc import Collection, Iterable
from typing import Final

from sidecar.policy.port import Decision
from sidecar.scope import Principal, Scope

_ANY: Final = "*"
_REMEMBERED: Final = 1_024
_ALLOWED: Final = Decision(allowed=True, listed=True)
_LISTED: Final = Decision(allowed=False, listed=True)
_DENIED: Final = Decision(allowed=False, listed=False)


class Words:
    """A set of texts, in which one that ends with `*` stands for all that begin so."""

    __slots__ = ("_beginnings", "_exact")

    def __init__(self, words: Iterable[str]) -> None:
        exact: set[str] = set()
        beginnings: set[str] = set()
        for word in words:
            if word.endswith(_ANY):
                beginnings.add(word.removesuffix(_ANY))
            else:
                exact.add(word)
        self._exact = frozenset(exact)
        self._beginnings = tuple(beginnings)

    def __contains__(self, text: str) -> bool:
        return text in self._exact or text.startswith(self._beginnings)


class Rule:
    """What a principal, or all that begin alike, may do. An empty text stands for what a call does not name."""

    __slots__ = ("principal", "principals", "subjects", "tenants", "tools")

    def __init__(
        self, principal: str, tools: Iterable[str], tenants: Iterable[str] = ("",), subjects: Iterable[str] = ("",)
    ) -> None:
        self.principal = principal
        self.principals = Words((principal,))
        self.tools = Words(tools)
        self.tenants = Words(tenants)
        self.subjects = Words(subjects)

    def covers(self, scope: Scope) -> bool:
        """Whether it is for the scope's tenant and subject."""
        owner = scope.owner
        return (owner.tenant or "") in self.tenants and (owner.named or "") in self.subjects


class StaticPolicy:
    """Allows what a rule allows. Those named as unrestricted may do everything, unless a rule names one of them."""

    def __init__(self, unrestricted: Collection[str], rules: Iterable[Rule] = ()) -> None:
        self._unrestricted = frozenset(unrestricted)
        self._rules: tuple[Rule, ...] = ()
        self._known: dict[Principal, tuple[Rule, ...] | None] = {}
        """Rules by the principals seen so far; `None`: may do everything."""
        self.replace(rules)

    def replace(self, rules: Iterable[Rule]) -> None:
        """Takes over other rules, for all calls that are decided from now on."""
        self._rules = tuple(rules)
        self._known = {}

    def decide(self, principal: Principal, scope: Scope, tool: str) -> Decision:
        """Whether this principal may act for this tenant and subject, with this tool."""
        rules = self._rules_of(principal)
        if rules is None:
            return _ALLOWED
        listed = False
        for rule in rules:
            if tool in rule.tools:
                if rule.covers(scope):
                    return _ALLOWED
                listed = True
        return _LISTED if listed else _DENIED

    def admits(self, principal: Principal, scope: Scope) -> bool:
        """Whether this principal may act for this tenant and subject at all."""
        rules = self._rules_of(principal)
        return rules is None or any(rule.covers(scope) for rule in rules)

    def _rules_of(self, principal: Principal) -> tuple[Rule, ...] | None:
        try:
            return self._known[principal]
        except KeyError:
            return self._rules_for(principal)

    def _rules_for(self, principal: Principal) -> tuple[Rule, ...] | None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        name = principal.name
        rules: tuple[Rule, ...] | None
        if name in self._unrestricted and all(rule.principal != name for rule in self._rules):
            rules = None
        elif principal.authenticated:
            rules = tuple(rule for rule in self._rules if name in rule.principals)
        else:
            rules = ()
        self._known[principal] = rules
        return rules
