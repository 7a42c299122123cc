# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared patches of a model's JSON files: what they make of the files, and whether vLLM will notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.json_document import JsonDocument, decode, parse, same
from ansible_collections.llmops.vllm.plugins.module_utils.json_patch import (
    Changes,
    apply_operations,
    check_expectations,
    check_value,
    find_changes,
    merge,
    parse_pointer,
    remove_keys,
    validate_operations,
)

CONFIG = "config.json"
QUANTIZATION_CONFIG = "hf_quant_config.json"

NOTHING_TO_DO = "the file is already as the patch wants it"
KEYS_MISSING = "none of the keys that it is for stands in the file"
FILE_MISSING = "the snapshot has no such file"
IGNORED = f"vLLM ignores {QUANTIZATION_CONFIG} when {CONFIG} carries quantization_config"
NESTED = (
    f"{CONFIG} carries quantization_config within text_config only; vLLM versions that lift it to the top "
    f"ignore {QUANTIZATION_CONFIG}"
)


@dataclass(frozen=True)
class Patch:
    """One declared change of one file, with the reason why it exists."""

    name: str
    file: str
    reason: str
    operations: Sequence[Mapping[str, Any]] = ()
    merge: Mapping[str, Any] = field(default_factory=dict)
    remove_keys: Sequence[str] = ()
    expect: Mapping[str, Any] = field(default_factory=dict)
    optional: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Patch:
        """Build a patch from a module's suboptions. Raises InvalidInputError for what no file could make right."""
        given = {name: value for name, value in parameters.items() if value is not None}
        patch = cls(**given)
        try:
            patch._validate()
        except InvalidInputError as error:
            raise InvalidInputError(f"patch '{patch.name}': {error.message.rstrip('.')}.") from error
        return patch

    def _validate(self) -> None:
        for name in ("name", "file", "reason"):
            if not getattr(self, name).strip():
                raise InvalidInputError(f"{name} must not be empty")
        if self.file.startswith("/") or not {"", ".", ".."}.isdisjoint(self.file.split("/")):
            raise InvalidInputError(f"file must be a plain path within the snapshot, not '{self.file}'")
        if not (self.operations or self.merge or self.remove_keys):
            raise InvalidInputError("give at least one of operations, merge and remove_keys")
        validate_operations(self.operations)
        check_value(dict(self.merge))
        check_value(dict(self.expect))
        for pointer in self.expect:
            parse_pointer(pointer)
        self._check_condition()

    def _check_condition(self) -> None:
        given = {name: value for name, value in self.when.items() if value is not None}
        others = ", ".join(sorted(set(given) - {"keys"}))
        if others:
            raise InvalidInputError(
                f"when has {others}, which is decided before: by the role vllm_service, or by the filter "
                "llmops.vllm.applicable_patches"
            )
        keys = given.get("keys")
        if keys is not None and not (isinstance(keys, list) and keys and all(isinstance(key, str) for key in keys)):
            raise InvalidInputError("when.keys has to be a list of keys")

    def is_for(self, value: Any) -> bool:
        """Whether one of the keys that the patch is for, if it names any, stands anywhere in ``value``."""
        keys = self.when.get("keys")
        return keys is None or bool(remove_keys(value, keys)[1])

    def transform(self, value: Any) -> Any:
        """Return what the patch makes of ``value``: expectations, operations, merge, removal, in this order."""
        check_expectations(value, self.expect)
        value = apply_operations(value, self.operations)
        if self.merge:
            value = merge(value, dict(self.merge))
        return remove_keys(value, self.remove_keys)[0]


@dataclass(frozen=True)
class PatchReport:
    """What one patch did; ``effective`` is false when the served model does not notice it."""

    patch: Patch
    changes: Changes
    effective: bool
    note: str = ""

    def as_result(self) -> dict[str, Any]:
        """Return the entry of the module's ``patched``."""
        return {
            "name": self.patch.name,
            "file": self.patch.file,
            "reason": self.patch.reason,
            "added": list(self.changes.added),
            "removed": list(self.changes.removed),
            "changed": list(self.changes.changed),
            "effective": self.effective,
            "note": self.note,
        }


@dataclass(frozen=True)
class PatchOutcome:
    """The content of every file that the patches change, and a report for each patch in the given order."""

    contents: dict[str, bytes]
    reports: list[PatchReport]


class _Files:
    """The documents of a snapshot, read when first needed, each with its present value."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._documents: dict[str, JsonDocument | None] = {}
        self._values: dict[str, Any] = {}

    def has(self, file: str) -> bool:
        if file not in self._documents:
            content = self._read(file)
            document = None if content is None else parse(decode(content, file), file)
            self._documents[file] = document
            self._values[file] = None if document is None else document.value
        return self._documents[file] is not None

    def value(self, file: str) -> Any:
        return self._values[file] if self.has(file) else None

    def put(self, file: str, value: Any) -> None:
        self._values[file] = value

    def changed(self) -> dict[str, bytes]:
        contents = {}
        for file, document in self._documents.items():
            if document is not None and not same(document.value, self._values[file]):
                contents[file] = document.render(self._values[file]).encode("utf-8")
        return contents


def apply_patches(patches: Sequence[Patch], read: Callable[[str], bytes | None]) -> PatchOutcome:
    """Apply ``patches`` in order to the files that ``read`` returns (``None``: no such file).

    Raises LlmopsError, naming patch and file, when a file is missing or not JSON, or a patch does not fit it.
    """
    files = _Files(read)
    reports = []
    for patch in patches:
        try:
            reports.append(_apply(patch, files))
        except LlmopsError as error:
            message = f"patch '{patch.name}' of {patch.file}: {error.message.rstrip('.')}."
            raise type(error)(message, **error.details) from error
    return PatchOutcome(files.changed(), _judge(reports, files))


def _apply(patch: Patch, files: _Files) -> PatchReport:
    if not files.has(patch.file):
        if patch.optional:
            return PatchReport(patch, Changes(), False, FILE_MISSING)
        raise InvalidInputError(f"{FILE_MISSING}; correct the name, or set optional if it may be missing")
    before = files.value(patch.file)
    if not patch.is_for(before):
        return PatchReport(patch, Changes(), False, KEYS_MISSING)
    after = patch.transform(before)
    files.put(patch.file, after)
    effective = not same(before, after)
    return PatchReport(patch, find_changes(before, after), effective, "" if effective else NOTHING_TO_DO)


def _judge(reports: list[PatchReport], files: _Files) -> list[PatchReport]:
    """Correct the verdict on patches of hf_quant_config.json by vLLM's order of precedence.

    vLLM (0.14 to 0.33, ``ModelConfig`` and ``get_quant_config``) reads that file only when the configuration has no
    top-level ``quantization_config``; null counts as none. Patching both files keeps them in step, which is no fault.
    """
    if not any(report.effective and report.patch.file == QUANTIZATION_CONFIG for report in reports):
        return reports
    config = files.value(CONFIG)
    if not isinstance(config, dict):
        return reports
    text_config = config.get("text_config")
    if config.get("quantization_config") is not None:
        note, ignored = IGNORED, not any(r.effective and r.patch.file == CONFIG for r in reports)
    elif isinstance(text_config, dict) and text_config.get("quantization_config") is not None:
        note, ignored = NESTED, False
    else:
        return reports
    return [
        replace(report, effective=not ignored, note=note)
        if report.effective and report.patch.file == QUANTIZATION_CONFIG
        else report
        for report in reports
    ]
