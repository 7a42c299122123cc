# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What speaks against a launch: findings, their verdict, and a text of them for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SEVERITIES = ("no_go", "warn", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a launch.

    ``severity`` is ``no_go`` (it cannot work), ``warn`` (it may not) or ``info``. ``evidence`` is what was seen and
    ``where`` the place it was read from; ``remedy`` the smallest change that helps and ``price`` what that costs;
    ``source`` says where the rule comes from. The last three may be empty.
    """

    id: str
    severity: str
    what: str
    evidence: str
    remedy: str
    where: str = ""
    price: str = ""
    source: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for a module's result."""
        return asdict(self)

    def as_text(self) -> str:
        """Return the finding as lines for people."""
        severity = self.severity.upper().replace("_", "-")
        evidence = f"{self.evidence} ({self.where})" if self.where else self.evidence
        lines = [f"{severity}: {self.what}", f"  evidence: {evidence}", f"  remedy: {self.remedy}"]
        lines += [f"  {name}: {text}" for name, text in (("price", self.price), ("source", self.source)) if text]
        return "\n".join(lines)


def verdict(findings: Sequence[Finding]) -> str:
    """Return ``go``, ``warn`` or ``no_go``: the worst of the findings."""
    severities = {finding.severity for finding in findings}
    return next((name for name in ("no_go", "warn") if name in severities), "go")


def report(findings: Sequence[Finding]) -> str:
    """Return all findings as text for people, the worst first."""
    ranked = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return "\n".join(finding.as_text() for finding in ranked)


def as_result(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return verdict and findings for a module's result."""
    return {"verdict": verdict(findings), "findings": [finding.as_dict() for finding in findings]}
