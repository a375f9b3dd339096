"""Settings: environment over run time over file over built-in (SPEC C). Import from the modules, each costs little."""
