"""What every scenario uses: one warm process that starts trainers."""

from collections.abc import Iterator

import pytest

from .zygote import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Start trainers through this."""
    with Zygote(tmp_path_factory.mktemp("output")) as warm:
        yield warm
