"""The recorder alone, with default settings, and no loss that the test did not ask about."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import spanfold
from spanfold.instrument import losses, state
from tests.instrument.reading import Lost


@pytest.fixture(autouse=True)
def lost(guest: None) -> Iterator[Lost]:
    """Return what was lost since the test began; a test that never asks must lose nothing."""
    connector, state.connector = state.connector, None  # documents and delivery have tests of their own
    spanfold.configure()
    before = losses.copy()
    asked: list[bool] = []

    def ask() -> dict[str, int]:
        asked.append(True)
        return {what: count - before[what] for what, count in losses.items() if count != before[what]}

    yield ask
    spanfold.shutdown()
    state.connector = connector
    left = trace.get_current_span()
    otel_context.attach(otel_context.Context())
    assert not left.get_span_context().is_valid
    if not asked:
        assert ask() == {}


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """Return the directory of the test's run."""
    return tmp_path / "run"
