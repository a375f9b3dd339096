"""Prices of the config file, and costs (rule U3)."""

from fleetgate.core.model_names import parse_model, parse_selector
from fleetgate.core.prices import ConfiguredPrice, Price, configured_price
from fleetgate.core.usage import Usage

MILLION = 10**6  # one dollar for a million tokens is so many units for one token


def test_U3_the_first_selector_that_matches_has_the_price():
    cheap, dear = Price(1, 1, 1, 1), Price(2, 2, 2, 2)
    configured = [
        ConfiguredPrice(parse_selector("anthropic/claude-opus-*"), dear),
        ConfiguredPrice(parse_selector("anthropic"), cheap),
    ]
    assert configured_price(parse_model("anthropic/claude-opus-4-6"), configured) == dear
    assert configured_price(parse_model("anthropic@work/anything"), configured) == cheap
    assert configured_price(parse_model("openai/gpt-5"), configured) is None


def test_U3_a_cost_is_exact_and_rounded_up():
    price = Price(15 * MILLION, 1_500_000, 18_750_000, 75 * MILLION)
    assert price.cost(Usage(1, input=1000, cache_read=1000, cache_write=1000, output=1000)) == 110_250
    assert price.cost(Usage(1, cache_read=1)) == 2  # a millionth of a dollar and a half
    assert price.cost(Usage(1)) == 0
    assert price.cost(Usage(output=10**15)) == 75 * 10**15  # no float in between
