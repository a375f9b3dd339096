"""Who may call: tokens, browser sessions, one-time links, and the guard that every request passes."""
