"""Commands on a service elsewhere: `fleetgate --service URL …`, with an access key and without the store."""
