"""Asking a provider how much is in flight there: one HTTP question, one number (SPEC G1, G4).

Whatever goes wrong is an `Unknown` with a sentence; nothing that is said here contains the key.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic

import msgspec

from fleetgate.config.settings import Provider

TIMEOUT_S = 5.0
_LONGEST_ANSWER = 256 * 1024
_MOST = 1 << 53  # what every JSON reader can hold


class Unknown(Exception):
    """There is no answer, and why."""


async def fetch(provider: Provider, key: str) -> int:
    """What the provider counts in flight. Raises Unknown."""
    began = monotonic()
    import aiohttp  # a quarter of a second, and part of the time that there is: only for those who wait anyhow

    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
    try:
        async with (
            asyncio.timeout(TIMEOUT_S - (monotonic() - began)),
            aiohttp.ClientSession(trust_env=True) as session,
            session.get(provider.base_url + provider.usage_path, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise Unknown(f"status {response.status}")
            body = b""
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _LONGEST_ANSWER:
                    raise Unknown("the answer is too long")
    except TimeoutError:
        raise Unknown(f"no answer within {TIMEOUT_S:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise Unknown(f"cannot connect to {error.host}: {error.os_error.strerror or type(error).__name__}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # its text may repeat what was sent
        raise Unknown(f"the question failed: {type(error).__name__}") from None
    return number_at(body, provider.usage_field)


def number_at(body: bytes, field: str) -> int:
    """The number at a dotted path of a JSON document, as a count. Raises Unknown."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unknown("the answer is not JSON") from None
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise Unknown(f"the answer has nothing at {field}")
        value = value[name]
    return count_of(value, f"at {field}")


def count_of(value: object, where: str) -> int:
    """A count: finite, not negative, truncated. Raises Unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unknown(f"no number {where}")
    if not math.isfinite(value) or value < 0:
        raise Unknown(f"{value} {where} is no count")
    return min(int(value), _MOST)
