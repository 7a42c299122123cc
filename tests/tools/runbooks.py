"""Write docs/runbooks from what the diagnosis and the preflight know, so that the pages cannot differ from it.

usage: make runbooks
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_cause import Cause
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import CAUSES, OUTSIDE_CAUSES
from ansible_collections.llmops.vllm.plugins.module_utils.known_hazards import KNOWN_HAZARDS
from ansible_collections.llmops.vllm.plugins.module_utils.related_findings import RELATED

DIRECTORY = Path(__file__).parents[2] / "docs" / "runbooks"
MADE = "<!-- Written by `make runbooks`; edit the data, not this page. -->"
HAZARDS = "known-hazards.md"
INTRODUCTION = """\
A page for each class of failure that `launch_diagnosis` and the gate know: how it looks, what to do, and where that is
known from. The class stands in the verdict of a failed rollout, in the receipt and in the answer of

```
ansible-playbook playbooks/diagnose.yml
```

What no page names is still located, at the first real failure of the launch, and said to be unclassified.
"""


def file_name(cause_class: str) -> str:
    """The page of a class."""
    return f"{cause_class.replace('_', '-')}.md"


def classes() -> dict[str, list[Cause]]:
    """The known causes by class, in the order in which they are looked for."""
    found: dict[str, list[Cause]] = {}
    for cause in (*CAUSES, *OUTSIDE_CAUSES):
        found.setdefault(cause.cause_class, []).append(cause)
    return dict(sorted(found.items()))


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def of_cause(cause: Cause) -> Iterator[str]:
    """The lines about one cause."""
    yield from (f"## {sentence(cause.title)[:-1]}", "", "```text", cause.example, "```", "")
    yield f"**Do this:** {cause.remedy}."
    yield ""
    versions = f", vLLM {cause.versions}" if cause.versions else ""
    yield f"Known from: {cause.source}{versions}."
    if cause.contexts:
        yield "It is taken for this cause only where another line of the same launch bears it out."
    yield ""


def of_class(name: str, causes: list[Cause]) -> str:
    """The page of one class."""
    lines = [MADE, "", f"# {name}", ""]
    findings = sorted(finding for finding, related in RELATED.items() if name in related)
    if findings:
        lines += [f"The preflight may have foreseen it: {', '.join(f'`{finding}`' for finding in findings)}.", ""]
    for cause in causes:
        lines += of_cause(cause)
    return "\n".join(lines).rstrip() + "\n"


def of_hazards() -> str:
    """The page of what is known and cannot be asked."""
    lines = [MADE, "", "# Known hazards", ""]
    lines += ["Findings of the preflight that neither the engine nor the host can be asked about.", ""]
    for hazard in KNOWN_HAZARDS:
        lines += [f"## {hazard['id']}", "", f"{sentence(hazard['what'])} Severity: `{hazard['severity']}`.", ""]
        lines += [f"**Do this:** {hazard['remedy']}.", ""]
        lines += [f"Known from <{hazard['source']}>; looked at again before vLLM {hazard['expires']}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[str, str]:
    """Every page by its file name."""
    known = classes()
    index = [MADE, "", "# Runbooks", "", INTRODUCTION]
    for name, causes in known.items():
        index.append(f"- [{name}]({file_name(name)}): {'; '.join(dict.fromkeys(cause.title for cause in causes))}")
    index += ["", f"What the preflight warns of without being able to ask: [known hazards]({HAZARDS})."]
    return {
        "README.md": "\n".join(index) + "\n",
        HAZARDS: of_hazards(),
        **{file_name(name): of_class(name, causes) for name, causes in known.items()},
    }


def main() -> None:
    """Write the pages, and remove those of classes that are gone."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in directory.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
