"""Run the steps of `make test`; see --help.

The last line is `N passed, N failed, N skipped`, where N counts steps and skipped means not run. A step that cannot
run here (no test host, no such Python) says why. Under CI=true that counts as failed.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import os
import sys
from pathlib import Path

from runner import Runner, Step, summary
from steps import Steps

ROOT = Path(__file__).resolve().parents[2]


def select(steps: list[Step], only: list[str], skip: list[str]) -> list[Step]:
    """Return the steps that --only and --skip leave; a step brings along the one that it comes after."""
    for pattern in [*only, *skip]:
        if not any(fnmatch.fnmatch(step.name, pattern) for step in steps):
            sys.exit(f"run_tests.py: no step is called '{pattern}'; --list shows the names.")
    wanted = {step.name for step in steps if not only or _matches(step, only)}
    wanted -= {step.name for step in steps if _matches(step, skip)}
    wanted |= {step.after for step in steps if step.name in wanted}
    return [step for step in steps if step.name in wanted]


def _matches(step: Step, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(step.name, pattern) for pattern in patterns)


def main() -> int:
    """Parse the command line and run; the result is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the steps and end")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run these steps (shell patterns)")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="leave these out (shell patterns)")
    parser.add_argument("--no-hosts", action="store_true", help="leave out what needs test hosts")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="scenarios at a time (default 1)")
    arguments = parser.parse_args()
    found = Steps(ROOT)
    steps = select(found.all(), arguments.only, arguments.skip)
    if arguments.no_hosts:
        steps = [step for step in steps if step not in found.on_hosts()]
    if arguments.list:
        width = max(len(step.name) for step in steps)
        print("\n".join(f"{step.name:{width}}  {step.title}" for step in steps))
        return 0
    logs = ROOT / ".cache/test"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("run_tests.py: another run is going on in this checkout; wait for it, or use a clone.")
        return run(steps, logs, max(1, arguments.jobs))


def run(steps: list[Step], logs: Path, jobs: int) -> int:
    """Run the steps and say what became of them; the result is the exit status."""
    in_ci = os.environ.get("CI", "").lower() in ("true", "1")
    runner = Runner(ROOT, logs, in_ci, lambda text: print(text, end="", flush=True), jobs)
    outcomes = runner.run(steps)
    print("\n".join(summary(outcomes)), flush=True)
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
