"""Bundles: one run in one file, the same bytes for the same run, checked with nothing but the file.

How to use them: docs/bundle.md. What is in the file: docs/formats/bundle-v1.md.
"""

from spanfold.bundle.exporting import SUFFIX, Exported, export
from spanfold.bundle.findings import BundleFinding
from spanfold.bundle.manifest import Entry, EntryKind, Manifest
from spanfold.bundle.reading import read_manifest
from spanfold.bundle.verifying import BundleVerdict, verify

__all__ = [
    "SUFFIX",
    "BundleFinding",
    "BundleVerdict",
    "Entry",
    "EntryKind",
    "Exported",
    "Manifest",
    "export",
    "read_manifest",
    "verify",
]
