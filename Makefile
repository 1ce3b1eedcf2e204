# Headrace. Every target installs what it needs first; the second run fetches nothing.
# Only Python 3.11 and Java 17 are expected on the machine.

# Compiled modules are kept: without them every command compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Three workers for two cores, as tests of servers wait a lot. Each has servers of its own, and a file stays with one
# of them (tests/distribution.py). With a fourth, tests with deadlines fail where the processors are busy with other work.
PARALLEL := -n 3 --dist loadfile

.PHONY: help
help:            ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## create .venv with pinned versions and the package, editable

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.PHONY: demo
demo: $(STAMP)   ## see it work: append to a log, read it back, kill a writer
	$(BIN)/headrace demo

.PHONY: test
test: $(STAMP)   ## every behaviour at small size, real servers included
	$(BIN)/pytest $(PARALLEL)

.PHONY: test-fast
test-fast: $(STAMP) ## the embedded tier only: no servers, no Spark
	$(BIN)/pytest $(PARALLEL) -m "not servers and not spark"

.PHONY: test-full
test-full: $(STAMP) ## the sizes that docs/behaviours writes down
	$(BIN)/pytest $(PARALLEL) --full --timeout 3600

.PHONY: check
check: $(STAMP)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: client
client: $(STAMP) ## build the JavaScript client's bundle for browsers, and the test vectors of clients
	$(BIN)/python tools/client_vectors.py
	PYTHONPATH=. $(BIN)/python -m tests.browser.packages clients/js/build.mjs

.PHONY: bench
bench: $(STAMP)  ## all benchmarks; one: .venv/bin/python -m benchmarks NAME
	$(BIN)/python -m benchmarks

.PHONY: protos
protos: $(STAMP) ## compile the messages of the gRPC service
	cd src/headrace/rpc && $(abspath $(BIN))/python -m grpc_tools.protoc -I. --descriptor_set_out=messages.binpb *.proto

.PHONY: lock
lock: $(STAMP)   ## pin the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--all-extras --group dev pyproject.toml -o requirements.lock

.PHONY: clean
clean:           ## remove what can be made again
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
