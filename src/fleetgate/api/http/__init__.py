"""HTTP connections of the service: limits, direct writing of answers, and the proxy's place next to the API."""
