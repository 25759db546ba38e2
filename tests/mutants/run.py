"""Breaks the product on purpose, one patch at a time, and sees that the tests notice.

Each `law_N….patch` or `guarantee_NN….patch` beside this file is applied to a work tree of HEAD, in which the tests that
its name begins with are run, such as `-k guarantee_09`. They have to fail: a patch that no test notices, that no longer
applies, or under which the tests cannot even be collected fails this program. Arguments are the beginnings of the names
of those to run; by default all.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AT_ONCE = 2
TIMEOUT = 300.0

_NAMED = re.compile(r"(law_\d+|guarantee_\d\d)(?:_\w+)?")
_FAILED = re.compile(r"^(?:FAILED|ERROR) \S+::(\w+)", re.MULTILINE)
_TESTS_FAILED = 1
_NONE_COLLECTED = 5
_worktrees = Lock()


class Verdict(NamedTuple):
    """What came of one patch."""

    name: str
    noticed: bool
    text: str


def main() -> int:
    """Runs the program; answers its exit code."""
    wanted = tuple(sys.argv[1:])
    patches = [patch for patch in sorted(HERE.glob("*.patch")) if not wanted or patch.name.startswith(wanted)]
    if not patches:
        print(f"There is no patch whose name begins with {' or '.join(wanted) or 'anything'} in {HERE}.")
        return 1
    if _git("status", "--porcelain", "--untracked-files=no").stdout:
        print("The work tree has changes; what is committed is what is tried.")
    passed = failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for verdict in pool.map(_try, patches):
            print(f"{'ok' if verdict.noticed else 'FAILED':6} {verdict.name}: {verdict.text}", flush=True)
            passed += verdict.noticed
            failed += not verdict.noticed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _try(patch: Path) -> Verdict:
    begun = time.perf_counter()
    named = _NAMED.fullmatch(patch.stem)
    if named is None:
        return Verdict(patch.stem, noticed=False, text="its name is of no law and no guarantee")
    with _worktree() as tree:
        # One line of context is enough, so that edits nearby do not matter.
        applied = _git("-C", str(tree), "apply", "-C1", str(patch))
        if applied.returncode:
            return Verdict(patch.stem, noticed=False, text=f"it does not apply: {applied.stderr.strip()}")
        try:
            # In memory first, which takes no time; over sockets only what is not noticed there.
            tests = _run_tests(tree, f"{named[1]}_ and not (unix or tcp)")
            if tests.returncode in (0, _NONE_COLLECTED):
                tests = _run_tests(tree, f"{named[1]}_ and (unix or tcp)")
        except subprocess.TimeoutExpired:
            return Verdict(patch.stem, noticed=False, text=f"its tests did not end within {TIMEOUT:g} s")
    took = f"{time.perf_counter() - begun:.1f} s"
    if tests.returncode == _TESTS_FAILED and (first := _FAILED.search(tests.stdout)):
        return Verdict(patch.stem, noticed=True, text=f"noticed by {first[1]} in {took}")
    if tests.returncode == 0:
        return Verdict(patch.stem, noticed=False, text=f"no test noticed it in {took}")
    end = "\n".join((tests.stdout + tests.stderr).splitlines()[-15:])
    return Verdict(patch.stem, noticed=False, text=f"its tests could not be run:\n{end}")


def _run_tests(tree: Path, expression: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'clients' / 'python'}", "PYTHONDONTWRITEBYTECODE": "1"}
    pytest = ("-X", "dev", "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", expression)
    place = ("--basetemp", str(tree.parent / "t"))
    # Collecting all tests takes longer than running these.
    prefix = f"def test_{expression.split(maxsplit=1)[0]}"
    files = [str(path) for path in sorted((tree / "tests").rglob("test_*.py")) if prefix in path.read_text("utf-8")]
    return subprocess.run(
        (sys.executable, *pytest, *place, *files),
        cwd=tree,
        env=environment,
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def _worktree() -> Iterator[Path]:
    """A work tree of HEAD, removed in the end."""
    with tempfile.TemporaryDirectory(prefix="pm-") as directory:
        tree = Path(directory) / "tree"
        with _worktrees:
            added = _git("worktree", "add", "--detach", "--quiet", str(tree), "HEAD")
        if added.returncode:
            raise RuntimeError(f"git worktree add failed: {added.stderr.strip()}")
        try:
            yield tree
        finally:
            _end_what_is_left(directory)
            with _worktrees:
                _git("worktree", "remove", "--force", str(tree))


def _end_what_is_left(directory: str) -> None:
    """Ends the processes that a broken product has left behind: they were started in here."""
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(directory):
                process.kill()
        except psutil.Error:  # Gone, or not ours to read.
            continue


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
