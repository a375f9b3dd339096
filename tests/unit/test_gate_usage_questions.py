"""What a provider's answer about its usage means (rules G1, G4)."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetgate.config.settings import Provider, Settings
from fleetgate.gate.providers.usage_questions import UsageSources
from fleetgate.gate.providers.usage_request import Unknown, number_at

FIELD = "usage.concurrent_sessions"


def body(value: str) -> bytes:
    return b'{"usage": {"concurrent_sessions": %b}}' % value.encode()


@pytest.mark.parametrize(("value", "count"), [("3", 3), ("2.9", 2), ("0", 0), ("0.99", 0), ("1e3", 1000)])
def test_g1_a_number_is_truncated_to_a_count(value: str, count: int) -> None:
    assert number_at(body(value), FIELD) == count


@pytest.mark.parametrize(
    "value",
    ['"three"', '"3"', "NaN", "Infinity", "-Infinity", "1e999", "-1", "-0.5", "true", "null", "[3]", '{"n": 3}', ""],
)
def test_g4_whatever_is_not_a_count_is_unknown(value: str) -> None:
    with pytest.raises(Unknown):
        number_at(body(value), FIELD)


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"3", b"null", b"\xff\xfe", b'{"usage": 3}', b'{"usage": []}'])
def test_g4_another_shape_is_unknown(document: bytes) -> None:
    with pytest.raises(Unknown):
        number_at(document, FIELD)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["usage", "n", ""]), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | anything.map(msgspec.json.encode))
def test_g4_no_document_raises_anything_else_or_gives_a_negative_count(document: bytes) -> None:
    with suppress(Unknown):
        assert number_at(document, "usage.n") >= 0


def test_g3_each_account_is_asked_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORK_KEY", "sk-2")
    monkeypatch.delenv("HOME_KEY", raising=False)
    told = Provider(base_url="https://a.test", usage_path="/usage", usage_field="n")
    accounts = {"umans": replace(told, key_env="HOME_KEY"), "umans@work": replace(told, key_env="WORK_KEY")}
    usage = UsageSources(Settings(providers=accounts))
    assert usage.accounts(["umans/a", "umans@work/a", "umans@work/b", "groq/c"]) == ("umans@work",)
    monkeypatch.setenv("HOME_KEY", "sk-1")
    assert usage.accounts(["umans/a", "umans@work/a"]) == ("umans", "umans@work")
    assert not UsageSources(Settings(providers={"umans": Provider(key_env="HOME_KEY")}))
