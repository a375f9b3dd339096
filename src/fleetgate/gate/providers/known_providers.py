"""The providers that need no configuration: their base URLs and the API that they speak."""

from __future__ import annotations

# name: (base URL, API)
KNOWN_PROVIDERS = {
    "anthropic": ("https://api.anthropic.com", "anthropic"),
    "openai": ("https://api.openai.com/v1", "openai"),
    "google": ("https://generativelanguage.googleapis.com", "gemini"),
    "openrouter": ("https://openrouter.ai/api/v1", "openai"),
    "groq": ("https://api.groq.com/openai/v1", "openai"),
    "mistral": ("https://api.mistral.ai/v1", "openai"),
}
