# Everything a newcomer needs: `make demo` to see it work, `make test` to see it hold. `make help` lists the rest.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# Only the project's own environment counts: none that is active in the shell, none that another Python left behind.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME DJANGO_SETTINGS_MODULE PIP_USER PIP_TARGET PIP_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Which Pythons may make the virtual environment; the first that is new enough does.
PYTHONS ?= python3 python3.14 python3.13 python3.12 python3.11
VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/installed

# An environment as in production. There is no database behind it.
PRODUCTION := env -u DEBUG ENV_FILE=/dev/null SECRET_KEY=only-for-the-checks-$$(printf '%050d' 7)-abcdefghij \
	ALLOWED_HOSTS=billing.example.org DATABASE_URL=postgresql://127.0.0.1:1/none REDIS_URL=redis://127.0.0.1:1/0

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(INSTALLED) .env ## the virtual environment in .venv with every pinned requirement, and a development .env

.PHONY: demo
demo: setup ## bill a sample period with real servers and eight workers, and show what came of it
	@PYTHONUNBUFFERED=1 $(PYTHON) manage.py demo

.PHONY: replay
replay: setup ## the incident with its naive lock, and what happens here in its place, under the same faults
	@PYTHONUNBUFFERED=1 $(PYTHON) manage.py replay $(ARGS)

.PHONY: admin
admin: setup ## the admin in a browser on this machine, with a development user whose password it prints
	@PYTHONUNBUFFERED=1 $(PYTHON) manage.py admin $(ARGS)

.PHONY: test
test: setup ## the test suite, on servers of its own; a part of it with ARGS="tests/outbox"
	@# Most tests wait for other processes, so more of them than there are cores run side by side.
	@$(PYTHON) -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: check
check: setup ## lint, types, import rules, migrations, and Django's deployment checks
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@# The settings that mypy's Django plugin loads are development's.
	DEBUG=on ENV_FILE=/dev/null $(VENV)/bin/mypy .
	$(VENV)/bin/lint-imports
	$(PRODUCTION) $(PYTHON) -W ignore::RuntimeWarning manage.py makemigrations --check
	@# The deployment checks ask the Redis of the leases how it is set up.
	$(PRODUCTION) $(PYTHON) -m tests.servers.lend_redis manage.py check --deploy --fail-level WARNING

.PHONY: clean
clean: ## stop the development servers and remove what they and the tools left; .venv and .env stay
	@if [ -d .local ]; then \
		[ -e $(INSTALLED) ] || { echo "make: .local/ needs .venv/ to be stopped and removed: make setup clean." >&2; exit 1; }; \
		env DEBUG=on ENV_FILE=/dev/null $(PYTHON) manage.py devservices down --purge; fi
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(INSTALLED): requirements.txt requirements-dev.txt
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
		for python in $(PYTHONS); do \
			$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
			$$python -c 'import venv, ensurepip' 2>/dev/null || { \
				echo "make: $$python lacks venv: apt-get install python3-venv brings it." >&2; exit 1; }; \
			exec $$python -m venv --clear $(VENV); \
		done; \
		echo "make: Python 3.11 or newer is needed: make setup PYTHONS=/path/to/python3 names one." >&2; exit 1; }
	@echo "installing the requirements into $(VENV)"
	@$(PYTHON) -m pip install --quiet -r requirements-dev.txt
	@touch $@

.env:
	@printf '%s\n' '# For development; .env.example lists every variable.' 'DEBUG=on' > .env
