"""Which programs the tests of this folder need, and one Jaeger for those that only look at traces of their own."""

from collections.abc import Iterator

import pytest

from tests.services.programs import Jaeger


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    with Jaeger(tmp_path_factory.mktemp("jaeger")) as running:
        yield running
