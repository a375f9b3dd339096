"""Jobs over HTTP: routes, request bodies, and the thread in which jobs are handled."""
