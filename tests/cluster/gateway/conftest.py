"""A gateway to a cluster in memory, and a client of it."""

from collections.abc import AsyncIterator

import httpx
import pytest
from support.gateway import gateway_of, http_client

from vq import aio
from vq.gateway.app import Gateway


@pytest.fixture
async def gateway(factory: aio.MessageFactory) -> AsyncIterator[Gateway]:
    """A gateway without tokens."""
    async with gateway_of(factory) as made:
        yield made


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with http_client(gateway) as made:
        yield made
