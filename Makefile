# Everything a developer runs, by one word each. The CI runs the same targets.
# What is made stands in .venv; packages come from where pip and cargo are told to look on this machine.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
PYTHON_OF_VENV := $(abspath $(VENV))/bin/python
PIP_INSTALL := $(PYTHON_OF_VENV) -m pip install --quiet --disable-pip-version-check
# Spark starts `python3` for its workers: the first one on the PATH has to be this one.
IN_VENV := PATH="$(abspath $(VENV))/bin:$$PATH" PYSPARK_PYTHON=$(PYTHON_OF_VENV)

# The tests run in several processes, and one that has no more takes some from another; each that comes upon Spark starts one of its own.
# They wait for disks, clocks and Spark for nearly half of their time, so there is one more than there are cores, and four at most.
WORKERS := --numprocesses=$$($(PYTHON_OF_VENV) -c 'import os; print(min(4, os.cpu_count() + 1))') --dist=worksteal

# The wheel is built in a folder of its own: cargo would take for the tree's what was built of the sdist's copy of it.
WHEEL_TARGET := $(abspath target)/wheel

# Stamps: each is newer than everything that was used to make what it stands for.
EMPTY := $(VENV)/.empty
INSTALLED := $(VENV)/.installed
TOOLED := $(VENV)/.tooled
# The classes that the Sparks of tests load, so that each starts sooner.
ARCHIVED := $(VENV)/spark.jsa

SOURCES := pyproject.toml Cargo.toml Cargo.lock README.md LICENSE \
	$(shell find rust python -not -path '*/__pycache__*' -not -path '*/target/*' -not -name '*.so')
CHECKED := python/ssbroker python/pyspark_ssbroker tests benches examples

.PHONY: help demo test build format lint lint-rust rules bench fuzz ci clean tools tools-with-java

help: ## say what each target does
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: tools-with-java $(INSTALLED) ## route a million conversations with PySpark; put a day of messages together
	@$(IN_VENV) $(PYTHON_OF_VENV) examples/route_a_day/main.py $(ARGS)
	@echo
	@$(IN_VENV) $(PYTHON_OF_VENV) examples/reassemble_a_day/main.py $(ARGS)

test: tools-with-java $(INSTALLED) $(TOOLED) $(ARCHIVED) ## run the tests against the installed release wheel (ARGS="-k word" for some)
	@$(IN_VENV) $(PYTHON_OF_VENV) -m pytest $(WORKERS) $(ARGS)

build: tools $(INSTALLED) ## build the release wheel and install it into .venv
	@echo "built: $$(ls $(VENV)/wheel/*.whl)"

format: tools $(INSTALLED) $(TOOLED) ## format Rust and Python, fix what the linters can
	cargo fmt --all
	$(PYTHON_OF_VENV) -m ruff check --quiet --fix $(CHECKED)
	$(PYTHON_OF_VENV) -m ruff format --quiet $(CHECKED) docs README.md
	$(PYTHON_OF_VENV) -m tests.guards.state_picture --write

lint: lint-rust $(INSTALLED) $(TOOLED) ## formatters, linters, types, and the stub against the binary
	$(PYTHON_OF_VENV) -m ruff check --quiet $(CHECKED)
	$(PYTHON_OF_VENV) -m ruff format --quiet --check $(CHECKED) docs README.md
	$(PYTHON_OF_VENV) -m mypy $(CHECKED)
	$(IN_VENV) $(PYTHON_OF_VENV) -m mypy.stubtest ssbroker._core --allowlist .mypy-stubtest-allowlist

lint-rust: tools
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings

rules: ## print which tests prove which rule
	@python3 -m tests.guards.rule_tests

bench: tools-with-java $(INSTALLED) $(TOOLED) ## compare with the rivals, answers checked first (BENCH_SHORT=1 for small sizes)
	@$(IN_VENV) $(PYTHON_OF_VENV) -m pytest benches $(ARGS)

fuzz: tools ## fuzz the assembler, its states and the wire (FUZZ_SECONDS=60 for each target)
	@scripts/fuzz

ci: ## everything above on a clean machine, as the CI runs it
	./.ci/run

clean: ## remove everything that was made
	rm -rf $(VENV) target .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find python tests benches examples -name __pycache__ -type d -prune -exec rm -rf {} +

tools:
	@scripts/check-tools python rust

tools-with-java:
	@scripts/check-tools python rust java

$(EMPTY): | tools
	@echo "making $(VENV) with $$(scripts/find-python)"
	@rm -rf $(VENV)
	@"$$(scripts/find-python)" -m venv $(VENV)
	@$(PIP_INSTALL) --upgrade "pip>=25.1" "maturin>=1.9.4,<2"
	@touch $@

$(INSTALLED): $(EMPTY) $(SOURCES) | tools
	@echo "building the release wheel out of the sdist, unpacked (a few minutes the first time)"
	@rm -rf $(VENV)/wheel $(VENV)/sdist
	@mkdir -p $(VENV)/sdist/unpacked
	@$(PYTHON_OF_VENV) -m maturin sdist --out $(VENV)/sdist >$(VENV)/sdist/log 2>&1 || { cat $(VENV)/sdist/log >&2; exit 1; }
	@tar -xzmf $(VENV)/sdist/*.tar.gz -C $(VENV)/sdist/unpacked --strip-components 1
	@cd $(VENV)/sdist/unpacked && CARGO_TARGET_DIR=$(WHEEL_TARGET) $(PYTHON_OF_VENV) -m maturin build --quiet --release --locked \
		--interpreter $(PYTHON_OF_VENV) --out $(abspath $(VENV))/wheel
	@echo "installing it with what it needs, broker and Spark included"
	@$(PIP_INSTALL) --force-reinstall --no-deps $(VENV)/wheel/*.whl
	@$(PIP_INSTALL) "$$(ls $(VENV)/wheel/*.whl)[broker,spark]"
	@touch $@

$(TOOLED): $(EMPTY) pyproject.toml
	@echo "installing what tests, linters and benchmarks need"
	@$(PIP_INSTALL) --group dev --group bench
	@touch $@

$(ARCHIVED): $(TOOLED) | $(INSTALLED)
	@echo "keeping the classes that the Sparks of tests load"
	@$(IN_VENV) $(PYTHON_OF_VENV) -m tests.java >$(VENV)/spark.log 2>&1 || { cat $(VENV)/spark.log >&2; exit 1; }
