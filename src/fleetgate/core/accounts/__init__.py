"""Account sets: which of several accounts of a provider a request uses (rules Z1 to Z5)."""
