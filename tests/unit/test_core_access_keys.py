"""Access keys in the engine: created, rotated, removed, and kept in snapshots (rule E1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetgate.core import events as ev
from fleetgate.core.access.key_handler import MOST_KEYS
from fleetgate.core.access.keys import AccessKey, CreateKey, RemoveKey, RotateKey
from fleetgate.core.errors import BadRequest
from fleetgate.core.state.state import State
from tests.property.harness import MINUTE, START, Bench, through_json

CI = AccessKey("ci", "d1", "agent", "web", "batch", 0)


def test_e1_a_key_is_created_rotated_and_removed_and_each_change_names_its_author():
    bench = Bench()
    assert bench.do(CreateKey(CI, "ann")) == [ev.KeySet(replace(CI, created_at=bench.now), "ann")]
    assert bench.do(RotateKey("ci", "d2", "bob")) == [
        ev.KeySet(replace(CI, digest="d2", created_at=bench.now), "bob", rotated=True)
    ]
    assert bench.state.access_keys["ci"].digest == "d2"
    assert bench.do(RemoveKey("ci", "ann")) == [ev.KeyRemoved("ci", "ann")]
    assert not bench.state.access_keys


def test_e1_a_snapshot_has_the_keys():
    bench = Bench()
    bench.do(CreateKey(CI, "ann"))
    restored = State.restore(through_json(bench.state.export()))
    assert restored.access_keys == bench.state.access_keys


def test_e1_a_key_expires_at_its_time():
    key = replace(CI, expires_at=START + MINUTE)
    assert key.is_valid_at(START)
    assert not key.is_valid_at(START + MINUTE)
    assert CI.is_valid_at(START + MINUTE)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (replace(CI, name=""), "valid are up to 40 letters"),
        (replace(CI, name="a b"), "valid are up to 40 letters"),
        (replace(CI, name="x" * 41), "valid are up to 40 letters"),
        (replace(CI, role="root"), "valid are viewer, agent, operator, admin"),
        (replace(CI, work_class="lazy"), "valid are interactive, normal, batch"),
        (replace(CI, max_priority=101), "valid is -100 to 100"),
        (replace(CI, project="a\nb"), "printable"),
        (replace(CI, project=""), "needs a project"),
        (replace(CI, expires_at=1), "expired already"),
    ],
)
def test_e1_what_is_not_valid_is_refused_with_what_is(key: AccessKey, sentence: str):
    bench = Bench()
    with pytest.raises(BadRequest, match=sentence):
        bench.do(CreateKey(key, "ann"))
    assert not bench.state.access_keys


def test_e1_a_name_is_used_once_and_the_number_of_keys_is_limited():
    bench = Bench()
    bench.do(CreateKey(CI, "ann"))
    with pytest.raises(BadRequest, match="already: remove it first, or rotate it"):
        bench.do(CreateKey(CI, "ann"))
    bench.state.access_keys.update({str(number): CI for number in range(MOST_KEYS)})
    with pytest.raises(BadRequest, match="10000 keys already"):
        bench.do(CreateKey(replace(CI, name="more"), "ann"))


def test_e1_an_unknown_key_can_be_neither_rotated_nor_removed():
    bench = Bench()
    with pytest.raises(BadRequest, match="no key 'ci'; keys: none yet"):
        bench.do(RotateKey("ci", "d", "ann"))
    with pytest.raises(BadRequest, match="no key 'ci'"):
        bench.do(RemoveKey("ci", "ann"))
