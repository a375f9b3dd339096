"""Tables and pages of text for a terminal."""
