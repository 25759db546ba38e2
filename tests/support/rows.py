"""What a tool's context has of the two systems whose contexts it joins, row by row. The bus is not there yet."""

ROWS = {
    "facts": "toolCallId, iteration, runId, sessionId, identity",
    "signal": "signal",
    "credentials": "credential, credentials, hasCredentials",
    "artifacts": "artifacts, hasArtifacts, wanted",
    "progress": "progress(payload)",
    "teardown": "onTeardown(), teardownScopes, toolSessionKey",
    "tools": "tools",
    "agent_events": "progress (agent events)",
    "cancel": "cancel",
    "server_outbound": "server_outbound",
    "caller_principal": "caller_principal",
    "parent_anchor": "parent_anchor",
}
"""The name that the tests of a row have, `test_row_NAME_...`, and the heading of its exchange in docs/protocol.md."""
