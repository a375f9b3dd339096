"""The definition of every key of config.toml: shapes, caps, budgets and prices, and the file as a whole."""
