"""The page of the documentation that shows what became of each fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/download-faults.md"
COMMAND = "make download-faults"
HEADINGS = (
    "Fault",
    "Over",
    "Ends",
    "Files right",
    "Wrong under a final name",
    "Fetched",
    "The next run",
    "What it says",
)
INTRODUCTION = f"""\
# What a download survives

Every row is a test of `tests/download`, and this page is written by it: the module `model_shards` runs against a hub
that misbehaves, for a repository of ten files and 36 MiB, six of them shards. The test then compares every byte that
lies under a final name with what the hub was given to serve, takes the fault away, and runs the module again. What is
written elsewhere, and a token that goes elsewhere, fails the test too.

- *Over*: plain HTTP, or TLS.
- *Ends*: "right" means that every file is there with the right bytes, "error" that the run failed with the sentence
  in the last column, "ended" that the process was ended from outside. *Files right* and *Wrong under a final name* are
  what was found then; the latter has to be 0.
- *Fetched* counts the content that servers sent in the faulty run, as a share of the repository's size. Over 100 %
  means that something came twice. "at most" is a bound that the test checks, where the figure itself depends on timing.
- *The next run*, with the fault gone, has to end right; the column shows how much it fetched.
- Where a fault has to be aimed, it is aimed at the fourth of six shards. One worker and two retries are given. A stall
  is one second without a byte.

To renew this page after a change: `{COMMAND}`.
"""


@dataclass(frozen=True)
class Row:
    """What became of one fault."""

    fault: str
    over: str
    ends: str
    right: str
    wrong: int
    fetched: str
    next_run: str
    says: str

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        cells = (
            self.fault,
            self.over,
            self.ends,
            self.right,
            str(self.wrong),
            self.fetched,
            self.next_run,
            self.says,
        )
        return [cell.replace("|", r"\|").replace("<", r"\<") for cell in cells]

    def line(self) -> str:
        """Return the row in Markdown."""
        return f"| {' | '.join(self.cells())} |"


class Table:
    """Rows in the order in which they came, by section; rows that differ only in the transport become one.

    ``partial``: not every case was run, so a row that is not here may be right all the same.
    """

    def __init__(self, partial: bool) -> None:
        self._sections: dict[str, list[Row]] = {}
        self.partial = partial

    def add(self, section: str, row: Row) -> None:
        """Take in one row."""
        rows = self._sections.setdefault(section, [])
        for number, known in enumerate(rows):
            if known.fault == row.fault and _but_transport(known) == _but_transport(row):
                rows[number] = Row(**{**vars(known), "over": f"{known.over}, {row.over}"})
                return
        rows.append(row)

    def lines(self) -> list[str]:
        """Return all rows in Markdown."""
        return [row.line() for rows in self._sections.values() for row in rows]

    def page(self) -> str:
        """Return the whole page."""
        return INTRODUCTION + "".join(_section(title, rows) for title, rows in self._sections.items())


def unlike(table: Table, page: str) -> str:
    """Return how ``page`` differs from what happened, or ''. Cases that were not run here are not looked for."""
    committed = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| Fault", "| ---"))
    ]
    happened = table.lines()
    new = [line for line in happened if line not in committed]
    old = [line for line in committed if line not in happened] if not table.partial else []
    wrong_head = "" if page.startswith(INTRODUCTION) else "the text above the tables"
    return "\n".join([*(f"+ {line}" for line in new), *(f"- {line}" for line in old), wrong_head]).strip()


def _section(title: str, rows: Iterable[Row]) -> str:
    head = f"| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}\n"
    return f"\n## {title}\n\n{head}" + "".join(f"{row.line()}\n" for row in rows)


def _but_transport(row: Row) -> Mapping[str, object]:
    return {key: value for key, value in vars(row).items() if key != "over"}
