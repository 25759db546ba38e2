"""A soak: a sidecar under steady load whose workers are killed and stopped and whose settings change, for minutes.

`python -m tests.soak --minutes 30` says in the end whether every call was decided, and whether memory, threads, files
and tasks of the sidecar stayed what they were. Its parts: `served` is the sidecar, `worker` the tools, `load` the
calls, `disturbance` what goes wrong, `readings` what is measured on the way, `verdict` what must hold in the end.
"""
