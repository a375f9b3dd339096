"""Settings: environment over run time over file over built-in (rules C1 to C7). Import from the modules, each costs
little."""
