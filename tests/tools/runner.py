"""Run steps, keep each one's output, and never call green what did not run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

Obstacle = Callable[[], "str | None"]
GRACE_SECONDS = 20
TAIL_LINES = 60
SUMMARY_LINES = 25
LINE_CHARACTERS = 1000  # a command line that names every file has fifteen times as many
INHERITED_BY_MISTAKE = re.compile(r"^(ANSIBLE_|MOLECULE_|PYTHON(PATH|HOME)$|PYTEST_|MYPY|GIT_|MAKE|MFLAGS|VIRTUAL_ENV)")


def _never() -> str | None:
    return None


@dataclass(frozen=True)
class Step:
    """One step: commands that must all end with 0, and output that proves that they looked at something."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    environment: str = ".venv"
    variables: Mapping[str, str] = field(default_factory=dict)
    proof: tuple[str, ...] = ()
    """Regular expressions, each of which must occur in the output."""
    disproof: tuple[str, ...] = ()
    """Regular expressions, none of which may occur in the output."""
    tally: tuple[tuple[str, str], ...] = ()
    """(regular expression, noun): group 1 is summed, or the matches are counted; shown, and never required."""
    obstacle: Obstacle = _never
    """Why the step cannot run here: one sentence, or None."""
    after: str = ""
    """The step that must have passed before."""
    timeout_seconds: int = 1800
    beside: bool = False
    """Whether it may run beside others of which this is true too: it mostly waits, and shares no state with them."""


@dataclass(frozen=True)
class Outcome:
    """What became of one step: 'passed', 'failed' or 'skipped' (not run), and the reason."""

    step: Step
    state: str
    detail: str = ""
    tail: tuple[str, ...] = ()
    """The last lines of a failed step's output, for the summary: often the end is all that a pipeline shows."""


class Runner:
    """Run steps in the checkout `root` and keep their output in the folder `logs`."""

    def __init__(self, root: Path, logs: Path, demand_all: bool, say: Callable[[str], None], jobs: int = 1) -> None:
        self.root = root
        self.logs = logs
        self.demand_all = demand_all
        self.say = say
        self.jobs = jobs
        self._running: set[subprocess.Popen[bytes]] = set()
        self._interrupted = threading.Event()

    def run(self, steps: Iterable[Step]) -> list[Outcome]:
        """Run `steps` in order, each whatever became of the others unless it comes `after` one of them.

        Neighbours that may run beside each other do so, `jobs` at a time.
        """
        steps = list(steps)
        self.logs.mkdir(parents=True, exist_ok=True)
        for old in self.logs.glob("*.log"):
            old.unlink()
        outcomes: list[Outcome] = []
        for group in _groups(list(enumerate(steps, start=1))):
            earlier = tuple(outcomes)
            if len(group) == 1 or self.jobs == 1:
                outcomes += [self._run_and_say(number, len(steps), step, earlier) for number, step in group]
            else:
                outcomes += self._run_beside(group, len(steps), earlier)
        return outcomes

    def _run_beside(
        self, group: Sequence[tuple[int, Step]], total: int, earlier: Sequence[Outcome]
    ) -> Sequence[Outcome]:
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            futures = [pool.submit(self._run_and_say, number, total, step, earlier) for number, step in group]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self._interrupted.set()
                for future in futures:
                    future.cancel()
                for process in list(self._running):
                    _end_group(process)
                raise

    def _run_and_say(self, number: int, total: int, step: Step, earlier: Sequence[Outcome]) -> Outcome:
        heading = f"[{number:2}/{total}] {step.title} ... "
        at_once = not step.beside or self.jobs == 1
        if at_once:
            self.say(heading)
        outcome, words = self._run_one(step, self.logs / f"{number:02}-{step.name}.log", earlier)
        self.say(words if at_once else heading + words)
        return outcome

    def _run_one(self, step: Step, log: Path, earlier: Sequence[Outcome]) -> tuple[Outcome, str]:
        obstacle = step.obstacle() or _unmet(step, earlier)
        if obstacle:
            state = "failed" if self.demand_all else "skipped"
            return Outcome(step, state, f"not run: {obstacle}"), f"not run: {obstacle}\n"
        started = time.monotonic()
        problem = self._execute(step, log)
        elapsed = time.monotonic() - started
        output = log.read_text(errors="replace")
        shown = re.sub(r"^\$ .*\n", "", output, flags=re.MULTILINE)  # a command line proves nothing
        problem = problem or missing_proof(step, shown)
        if problem:
            tail = "".join(f"    | {line}\n" for line in last_lines(output, TAIL_LINES))
            words = f"FAILED ({elapsed:.1f} s): {problem}\n{tail}    all of it: {log.relative_to(self.root)}\n"
            return Outcome(step, "failed", problem, last_lines(output, SUMMARY_LINES)), words
        return Outcome(step, "passed"), f"ok ({', '.join([f'{elapsed:.1f} s', *tally(step, shown)])})\n"

    def _execute(self, step: Step, log: Path) -> str:
        """Run every command of the step, also after a failure; return the first problem, or ''."""
        problem = ""
        with log.open("w") as output:
            for command in step.commands:
                output.write(f"$ {' '.join(command)}\n")
                output.flush()
                ended = self._command(step, command, output.fileno())
                problem = problem or (f"{Path(command[0]).name} {ended}" if ended else "")
        return problem

    def _command(self, step: Step, command: tuple[str, ...], output: int) -> str:
        try:
            process = subprocess.Popen(
                [self._executable(step, command[0]), *command[1:]],
                cwd=self.root,
                env=self._variables(step),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            return f"cannot be started: {exc}"
        self._running.add(process)
        try:
            if self._interrupted.is_set():
                _end_group(process)
            status = process.wait(timeout=step.timeout_seconds)
        except subprocess.TimeoutExpired:
            _end_group(process)
            return f"did not end within {step.timeout_seconds} s"
        except BaseException:
            _end_group(process)
            raise
        finally:
            self._running.discard(process)
        return f"ended with status {status}" if status else ""

    def _executable(self, step: Step, name: str) -> str:
        """A program of the step's own environment, a file of the checkout, or whatever PATH says, in this order."""
        for candidate in (self.root / step.environment / "bin" / name, self.root / name):
            if candidate.is_file():
                return str(candidate)
        return name

    def _variables(self, step: Step) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not INHERITED_BY_MISTAKE.match(name)}
        # A shim of a Python that is not enabled does not start; ansible's discovery on localhost would choose it.
        inherited_path = [
            part for part in inherited.get("PATH", os.defpath).split(os.pathsep) if Path(part).name != "shims"
        ]
        path = os.pathsep.join([str(self.root / step.environment / "bin"), *inherited_path])
        plain = {"ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1", "PY_COLORS": "0", "PYTHONUNBUFFERED": "1"}
        return {**inherited, **plain, "LC_ALL": "C.UTF-8", "PATH": path, **step.variables}


def _groups(numbered: Sequence[tuple[int, Step]]) -> list[list[tuple[int, Step]]]:
    """Put neighbours together that may run beside each other."""
    groups: list[list[tuple[int, Step]]] = []
    for number, step in numbered:
        if groups and step.beside and groups[-1][-1][1].beside:
            groups[-1].append((number, step))
        else:
            groups.append([(number, step)])
    return groups


def _unmet(step: Step, earlier: Sequence[Outcome]) -> str | None:
    for outcome in earlier:
        if outcome.step.name == step.after and outcome.state != "passed":
            return f"the step '{step.after}' did not pass."
    return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command, politely at first, and surely whatever it started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(output: str, number: int) -> tuple[str, ...]:
    """Return the last lines of an output, the long ones cut."""
    lines = output.splitlines()[-number:]
    return tuple(line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} ..." for line in lines)


def missing_proof(step: Step, output: str) -> str:
    """Why output of commands that all ended with 0 is no proof, or ''."""
    for pattern in step.disproof:
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            return f"it ended with 0 but says '{found.group(0).strip()}'"
    for pattern in step.proof:
        if not re.search(pattern, output, re.MULTILINE):
            return f"it ended with 0 but its output does not show that it did anything (no match for '{pattern}')"
    return ""


def tally(step: Step, output: str) -> list[str]:
    """What the step counted, in words: ['312 tests']."""
    counted = []
    for pattern, noun in step.tally:
        expression = re.compile(pattern, re.MULTILINE)
        found = expression.findall(output)
        number = sum(int(text) for text in found) if expression.groups else len(found)
        if number:
            counted.append(f"{number} {noun}")
    return counted


def summary(outcomes: list[Outcome]) -> list[str]:
    """The closing lines: what failed, what was not run and why, and the count of steps."""
    lines = []
    for state, heading in (("failed", "Failed:"), ("skipped", "Not run:")):
        rows = [outcome for outcome in outcomes if outcome.state == state]
        width = max((len(outcome.step.name) for outcome in rows), default=0)
        if rows:
            lines += ["", heading]
            for outcome in rows:
                lines.append(f"  {outcome.step.name:{width}}  {outcome.detail}")
                lines += [f"    | {line}" for line in outcome.tail]
    number = {state: sum(outcome.state == state for outcome in outcomes) for state in ("passed", "failed", "skipped")}
    return [*lines, "", ", ".join(f"{count} {state}" for state, count in number.items())]
