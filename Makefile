# Everything a person or CI runs. `make` alone sets up .venv; each target does what its name says.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup check test test-all test-real demo schemas docs dashboards conformance bench clean

setup: $(READY)

# Python 3.11 or later and make are all a fresh machine needs; every other version is pinned in requirements.lock.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("loadchaos needs Python 3.11 or later; PYTHON=... chooses another" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_arrows.py

test: $(READY)
	$(BIN)/pytest -q -n auto --dist worksteal -m "not slow and not real"

test-all: $(READY)
	$(BIN)/pytest -q -n auto --dist worksteal -m "not real"

# Against a real vLLM and LMDeploy's real HTTP layer; says what is not installed.
test-real: $(READY)
	$(BIN)/pytest -q -m real tests/real

demo: $(READY)
	$(BIN)/python -m loadchaos.cli.demo

schemas: $(READY)
	$(BIN)/python -m loadchaos.profile.schema > schemas/profile.json

# What a request comes to for each way a server can misbehave, asked anew; also docs/conformance.md.
conformance: $(READY)
	@$(BIN)/python -m tests.load.wire.conformance > docs/conformance.md.new
	@mv docs/conformance.md.new docs/conformance.md
	@cat docs/conformance.md

dashboards: $(READY)
	$(BIN)/python -m loadchaos.report.metrics.dashboards dashboards

docs: $(READY)
	$(BIN)/python -m loadchaos.report.metrics.metric_table > docs/metrics.md
	$(BIN)/python -m loadchaos.core.ledger.rows_page > docs/ledger.md

# CPU a request and a token, and how true the clock is, beside other clients; writes docs/performance.*. Half an hour.
bench: $(READY)
	$(BIN)/python -m bench.cost $(BENCH)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
