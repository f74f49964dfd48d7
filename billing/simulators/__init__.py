"""Stand-ins for the services a bill depends on, as real processes: a slow tax service, a misbehaving mail server."""
