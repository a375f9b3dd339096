"""Prices of models: of the config file, of the package, and of neither (rule U3)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fleetgate.core.model_names import Model, parse_selector
from fleetgate.core.prices import ConfiguredPrice, Price
from fleetgate.gate.prices import lookup
from fleetgate.gate.prices.lookup import PublishedPrices, load_from_file, load_in_background, price_of
from fleetgate.gate.prices.table import PriceTable
from tests.price_table import put_prices

MILLION = 10**6  # one dollar for a million tokens is so many units for one token


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with the table in it, of which nothing was read yet."""
    put_prices(tmp_path)
    monkeypatch.setenv("FLEETGATE_HOME", str(tmp_path))
    monkeypatch.setattr(lookup, "_published", PublishedPrices())
    return tmp_path


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The children that were started."""
    started: list[str] = []
    real = lookup._table_of_child

    def noted(source: str) -> PriceTable:
        started.append(source)
        return real(source)

    monkeypatch.setattr(lookup, "_table_of_child", noted)
    return started


def test_U3_known_models_have_the_prices_that_their_providers_publish() -> None:
    opus = Price(5 * MILLION, MILLION // 2, 6_250_000, 25 * MILLION)
    assert price_of("anthropic/claude-opus-4-6") == opus
    assert price_of("anthropic@work/claude-opus-4-6-20260205") == opus
    assert price_of("openai/gpt-5") == Price(1_250_000, 125_000, 1_250_000, 10 * MILLION)


def test_U3_the_price_for_short_prompts_is_used_where_there_are_several() -> None:
    assert price_of("google/gemini-2.5-pro") == Price(1_250_000, 125_000, 1_250_000, 10 * MILLION)


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        ("gemini/gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("vertex/gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("x-ai/grok-4", "xai/grok-4"),
        ("amazon-bedrock/anthropic.claude-opus-4-6-v1:0", "bedrock/anthropic.claude-opus-4-6-v1:0"),
    ],
)
def test_U3_providers_have_prices_by_all_their_names(ours: str, same: str) -> None:
    assert price_of(ours) == price_of(same) is not None


@pytest.mark.parametrize(
    "model",
    [
        "openai/no-such-model",
        "ollama/llama3",
        "vllm/gpt-5",
        "my-openai-proxy/gpt-5",
        "gpt-5",
        "",
        "a/*",
        "x@/y",
        "\0/é",
    ],
)
def test_U3_what_is_not_known_has_no_price(model: str) -> None:
    assert price_of(model) is None


def test_U3_a_price_of_the_config_wins() -> None:
    cheap, nothing = Price(1, 1, 1, 1), Price(0, 0, 0, 0)
    configured = [
        ConfiguredPrice(parse_selector("anthropic"), cheap),
        ConfiguredPrice(parse_selector("ollama"), nothing),
    ]
    assert price_of("anthropic/claude-opus-4-6", configured) == cheap
    assert price_of("ollama/llama3", configured) == nothing
    assert price_of("openai/gpt-5", configured) == price_of("openai/gpt-5") is not None


def test_U3_a_price_of_the_day_is_looked_up_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Model] = []
    now = [1000.0]
    published = PublishedPrices()
    published.load()
    monkeypatch.setattr(lookup, "_published", published)
    monkeypatch.setattr(published, "_look_up", looked_up.append)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(3):
        price_of("deepseek/deepseek-chat")
    assert len(looked_up) == 1
    now[0] += 3600
    price_of("deepseek/deepseek-chat")
    assert len(looked_up) == 2


def test_U3_clients_that_name_thousands_of_models_cost_bounded_memory_and_no_process(children: list[str]) -> None:
    for number in range(3000):
        price_of(f"openai/model-{number}")
    assert len(lookup._published._known) <= 1000
    assert children == []


def test_U3_the_table_is_made_once_by_a_child_and_again_for_another_package(folder: Path, children: list[str]) -> None:
    (folder / lookup.FILE).unlink()
    assert not load_from_file()
    assert price_of("openai/gpt-5") is not None
    assert len(children) == 1
    assert PublishedPrices().load(without_child=True), "the next process finds it"
    (folder / lookup.FILE).write_bytes((folder / lookup.FILE).read_bytes().replace(b'"source":"', b'"source":"old', 1))
    assert not PublishedPrices().load(without_child=True), "it is of an older package"


def test_U3_a_table_that_another_user_could_have_changed_is_not_read(folder: Path) -> None:
    (folder / lookup.FILE).chmod(0o666)
    assert not load_from_file()


def test_U3_a_folder_that_cannot_be_written_costs_a_child_each_time(
    monkeypatch: pytest.MonkeyPatch, children: list[str]
) -> None:
    monkeypatch.setenv("FLEETGATE_HOME", "/proc/nowhere")
    assert price_of("openai/gpt-5") is not None
    assert len(children) == 1


def test_U3_a_child_that_fails_is_mentioned_and_tried_again_without_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / lookup.FILE).unlink()
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert price_of("openai/gpt-5") is None
    assert "the prices of genai-prices cannot be read: exit 1" in caplog.text
    monkeypatch.undo()
    monkeypatch.setenv("FLEETGATE_HOME", str(folder))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    put_prices(folder)
    assert price_of("openai/other") is None, "not yet"
    now[0] += 400
    threads = set(threading.enumerate())
    price_of("openai/gpt-5")
    for thread in set(threading.enumerate()) - threads:
        thread.join()
    now[0] += 400
    assert price_of("openai/gpt-5") is not None


def test_U3_prices_are_loaded_in_a_thread_which_says_so(folder: Path) -> None:
    loaded = threading.Event()
    load_in_background(loaded.set)
    assert loaded.wait(60)
    load_in_background()


def test_U3_no_process_of_ours_imports_the_package_and_without_it_only_the_config_has_prices(folder: Path) -> None:
    script = (
        "import sys, fleetgate, fleetgate.gate.prices.lookup as p\n"
        "assert p.price_of('openai/gpt-5')\n"
        "assert not any(name.startswith(('genai_prices', 'pydantic')) for name in sys.modules)\n"
        "sys.modules['genai_prices'] = None\n"
        "p._published = p.PublishedPrices()\n"
        "assert p.load_from_file()\n"
        "assert p.price_of('openai/gpt-5') is None\n"
    )
    environ = {**os.environ, "FLEETGATE_HOME": str(folder)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
