"""Tables that the engine is built with, which are not compiled (docs/decisions/0018)."""
