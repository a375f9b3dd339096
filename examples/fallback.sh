#!/bin/sh
# A script of your own that calls a provider: it asks which model works now, and reports a rate limit that it saw.
set -eu
models=anthropic/claude-opus-4-6,openai/gpt-5
model=$(fleetgate select -m "$models")
echo "first: $model"
# … here your program would call the provider, and be refused …
fleetgate report "$model" --rate-limited --retry-after 60 >/dev/null
echo "then: $(fleetgate select -m "$models")"
