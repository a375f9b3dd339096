"""Prices of models: of the config file, of the package, and of neither (rule U3)."""

import subprocess
import sys

import pytest

from fleetgate import prices
from fleetgate.core.model_names import parse_selector
from fleetgate.core.usage import Usage
from fleetgate.prices import ConfiguredPrice, Price, price_of

MILLION = 10**6  # one dollar for a million tokens is so many units for one token


def test_U3_known_models_have_the_prices_that_their_providers_publish():
    opus = Price(5 * MILLION, MILLION // 2, 6_250_000, 25 * MILLION)
    assert price_of("anthropic/claude-opus-4-6") == opus
    assert price_of("anthropic@work/claude-opus-4-6-20260205") == opus
    assert price_of("openai/gpt-5") == Price(1_250_000, 125_000, 1_250_000, 10 * MILLION)


def test_U3_the_price_for_short_prompts_is_used_where_there_are_several():
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
def test_U3_providers_have_prices_by_all_their_names(ours, same):
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
def test_U3_what_is_not_known_has_no_price(model):
    assert price_of(model) is None


def test_U3_a_price_of_the_config_wins_and_the_narrowest_selector_first():
    cheap, dear, nothing = Price(1, 1, 1, 1), Price(2, 2, 2, 2), Price(0, 0, 0, 0)
    configured = [
        ConfiguredPrice(parse_selector("anthropic/claude-opus-*"), dear),
        ConfiguredPrice(parse_selector("anthropic"), cheap),
        ConfiguredPrice(parse_selector("ollama"), nothing),
    ]
    assert price_of("anthropic/claude-opus-4-6", configured) == dear
    assert price_of("anthropic@work/anything", configured) == cheap
    assert price_of("ollama/llama3", configured) == nothing
    assert price_of("openai/gpt-5", configured) == price_of("openai/gpt-5")


def test_U3_a_cost_is_exact_and_rounded_up():
    price = Price(15 * MILLION, 1_500_000, 18_750_000, 75 * MILLION)
    assert price.cost(Usage(1, input=1000, cache_read=1000, cache_write=1000, output=1000)) == 110_250
    assert price.cost(Usage(1, cache_read=1)) == 2  # a millionth of a dollar and a half
    assert price.cost(Usage(1)) == 0
    assert price.cost(Usage(output=10**15)) == 75 * 10**15  # no float in between


def test_U3_a_price_of_the_day_is_looked_up_again_after_a_while(monkeypatch):
    looked_up, now = [], [1000.0]
    monkeypatch.setattr(prices, "_known", {})
    monkeypatch.setattr(prices, "_look_up", lambda model: looked_up.append(model))
    monkeypatch.setattr("fleetgate.prices.time.monotonic", lambda: now[0])
    for _ in range(3):
        price_of("deepseek/deepseek-chat")
    assert len(looked_up) == 1
    now[0] += 3600
    price_of("deepseek/deepseek-chat")
    assert len(looked_up) == 2


def test_U3_clients_that_name_thousands_of_models_cost_bounded_memory(monkeypatch):
    monkeypatch.setattr(prices, "_known", {})
    monkeypatch.setattr(prices, "_look_up", lambda model: None)
    for number in range(5000):
        price_of(f"openai/model-{number}")
    assert len(prices._known) <= 1000


def test_U3_without_the_package_only_the_config_has_prices_and_importing_fleetgate_does_not_load_it():
    script = (
        "import sys, fleetgate, fleetgate.prices as p\n"
        "assert not any(name.startswith(('genai_prices', 'pydantic')) for name in sys.modules)\n"
        "sys.modules['genai_prices'] = None\n"
        "assert p.price_of('openai/gpt-5') is None\n"
        "p.load_in_background()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
