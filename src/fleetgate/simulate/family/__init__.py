"""Random scenarios, and how policies do on them, class by class."""
