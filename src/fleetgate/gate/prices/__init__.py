"""Published prices of models, from the package `genai-prices`."""
