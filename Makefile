# Commands for people and CI. `make` alone sets up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup check test test-all test-real golden mutants demo schemas docs dashboards conformance bench site clean

setup: $(READY)

# A fresh machine needs only Python 3.11 or later and make; requirements.lock pins all other versions.
$(READY): requirements.lock pyproject.toml hatch_build.py loadchaos/load/wire/_native.c
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

# Whole runs wait more than they compute: three more test processes than cores use the cores better.
TEST_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 3)

test: export CI = true  # as on a CI machine, where the embedded server needs --embedded
test: $(READY)
	$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist worksteal -m "not slow and not real"

test-all: $(READY)
	$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist worksteal -m "not real"

# Test against a real vLLM and LMDeploy's real HTTP layer; servers that are not installed are skipped.
test-real: $(READY)
	$(BIN)/pytest -q -m real tests/real

# Compare all outputs of the stored ledgers with the expected ones; UPDATE=1 rewrites these. docs/testing.md.
golden: $(READY)
	$(BIN)/python -m tests.golden $(if $(UPDATE),--update)

# Apply each kept mutant to a copy of the tree and run the tests that must notice it; docs/testing.md.
mutants: $(READY)
	$(BIN)/python -m tests.mutants $(MUTANTS)

# Exit code 1 means that the server failed: the embedded one has the bug of vllm-project/vllm#38551, encoder_cache_miss.
demo: $(READY)
	$(BIN)/loadchaos run profiles/mtp_mm.yaml --embedded; test $$? -eq 1
	@echo 'To test your own server: loadchaos run mtp_mm --target http://HOST:PORT --authorize HOST:PORT --server-log PATH'

schemas: $(READY)
	$(BIN)/python -m loadchaos.profile.schema > schemas/profile.json
	$(BIN)/python -m loadchaos.profile.request_trace > schemas/trace.json
	$(BIN)/python -m loadchaos.analysis.verdict.model > schemas/verdict.json
	$(BIN)/python -m loadchaos.analysis.capacity.result > schemas/capacity.json

# Write docs/conformance.md: the outcome of a request for each way a server can misbehave.
conformance: $(READY)
	@$(BIN)/python -m tests.load.wire.conformance > docs/conformance.md.new
	@mv docs/conformance.md.new docs/conformance.md
	@cat docs/conformance.md

dashboards: $(READY)
	$(BIN)/python -m dashboards.generator.dashboards dashboards

docs: $(READY)
	$(BIN)/python -m loadchaos.report.metrics.metric_table > docs/metrics.md
	$(BIN)/python -m docs.ledger_page > docs/ledger.md
	$(BIN)/python -m docs.commands_page > docs/cli.md
	$(BIN)/python -m docs.tables
	$(BIN)/python -m docs.compatibility
	$(BIN)/python -m docs.advisories
	$(BIN)/python -m docs.doctor

# Build the documentation as a site in build/site/html. Warnings, such as a link that leads nowhere, are errors.
SITE := build/site-venv
site: $(SITE)/.ready
	$(PYTHON) -m docs.site build/site
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict -f build/site/mkdocs.yml

$(SITE)/.ready: docs/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r docs/requirements.txt
	@touch $@

# Measure CPU per request and per token and timing accuracy, compared with other clients. Takes half an hour.
bench: $(READY)
	$(BIN)/python -m bench.cost $(BENCH)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
