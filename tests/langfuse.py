"""A Langfuse of the tests' own: where it takes traces, and the variables that name it."""

from collections.abc import Iterator

import pytest

from spanfold.testing import LoopbackOtlpReceiver

TRACES = "/api/public/otel/v1/traces"


@pytest.fixture
def langfuse() -> Iterator[LoopbackOtlpReceiver]:
    """A receiver in place of Langfuse; the folder's conftest.py imports it, and `to` names it to a program."""
    with LoopbackOtlpReceiver(path=TRACES) as running:
        yield running


def to(receiver: LoopbackOtlpReceiver) -> dict[str, str]:
    """Return the variables that make a program send to that receiver."""
    return {
        "LANGFUSE_PUBLIC_KEY": "pk",
        "LANGFUSE_SECRET_KEY": "sk",
        "LANGFUSE_BASE_URL": receiver.endpoint.removesuffix(TRACES),
    }
