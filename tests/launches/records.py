"""What became of each launch: a record and, made fit to be published, its log."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.tests.launches.cases import ANSWERS_WRONGLY, CASES, SERVES, Case
from ansible_collections.llmops.vllm.tests.rig import tiny_models

LOGS = Path(__file__).parent / "logs"
RECORDS = LOGS / "records.json"
Record = dict[str, Any]
ADDRESS = "192.0.2.10"
_one_at_a_time = threading.Lock()


def load() -> dict[str, Record]:
    """Return the records by the names of the cases, in their order."""
    known = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return {case.name: known[case.name] for case in CASES if case.name in known}


def own_address() -> str:
    """The address that this machine would have in the engine's log."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def publishable(text: str, port: int) -> str:
    """Return a log without what is this machine's own: its address, and the port of this trial."""
    text = text.replace(own_address(), ADDRESS) if own_address() != "127.0.0.1" else text
    return re.sub(rf"\b{port}\b", "8000", text)


def root_line(text: str, pattern: str) -> int:
    """Return the number, from 1, of the first line that the pattern matches; 0 for none."""
    if not pattern:
        return 0
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if re.search(pattern, line)), 0)


def record_of(case: Case, outcome: dict[str, Any], log: Path | None) -> Record:
    """Return what a trial came to; ``log`` is that of its launch, when there was one."""
    said = outcome["preflight"]
    record: Record = {
        "preflight": {
            "verdict": "no_go" if said.get("failed") else said["verdict"],
            "no_go": sorted({one["id"] for one in said.get("findings", ()) if one["severity"] == "no_go"}),
            "msg": "" if "findings" in said else said.get("msg", ""),
            "kv_tokens": (said.get("memory") or {}).get("kv_tokens"),
        }
    }
    if log is not None:
        record["engine"] = {**outcome["engine"], "root_line": root_line(log.read_text(errors="replace"), case.root)}
    return record


def keep(case: Case, outcome: dict[str, Any], log: Path | None) -> Record:
    """Write what a trial came to into the records, and its launch's log; return the whole record."""
    fresh = record_of(case, outcome, log)
    with _one_at_a_time:
        LOGS.mkdir(exist_ok=True)
        known = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
        record = known[case.name] = {**known.get(case.name, {}), **fresh}
        kept = LOGS / f"{case.name}.log"
        if log is None and kept.exists():
            record["engine"]["root_line"] = root_line(kept.read_text(errors="replace"), case.root)
        if log is not None:
            text = publishable(log.read_text(errors="replace"), outcome["port"])
            (LOGS / f"{case.name}.log").write_text(text)
        tiny_models.write_json(RECORDS, {case.name: known[case.name] for case in CASES if case.name in known})
    return dict(known[case.name])


def tried(case: Case, known: dict[str, Record]) -> bool:
    """Whether the case has been launched, and not only asked about."""
    return "engine" in known.get(case.name, {})


def ending(case: Case, known: dict[str, Record]) -> str:
    """Return how the launch ended, or what its case says where it has not been tried.

    Answers that are not those of the unharmed model are wrong ones.
    """
    if not tried(case, known):
        return case.ends
    engine = known[case.name]["engine"]
    if engine["ends"] == SERVES and case.ends == ANSWERS_WRONGLY:
        unharmed = known["llama"]["engine"]["answer"]
        return ANSWERS_WRONGLY if engine["answer"] != unharmed else SERVES
    return str(engine["ends"])
