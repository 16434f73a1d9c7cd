# All development tasks; CI runs the same targets.
# Everything is installed into .venv, with the package indexes that pip and cargo are configured to use.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
PYTHON_OF_VENV := $(abspath $(VENV))/bin/python
PIP_INSTALL := $(PYTHON_OF_VENV) -m pip install --quiet --disable-pip-version-check
# Spark starts `python3` for its workers, so this one must be the first on the PATH.
IN_VENV := PATH="$(abspath $(VENV))/bin:$$PATH" PYSPARK_PYTHON=$(PYTHON_OF_VENV)

# The tests run in parallel processes; tests/conftest.py decides how many, and tests/scheduling.py which tests run in the same one.
WORKERS := --numprocesses=auto

# The wheel has its own build folder: cargo would mix up the sources with those of the unpacked sdist.
WHEEL_TARGET := $(abspath target)/wheel

# Stamp files: each is newer than all inputs of its step.
EMPTY := $(VENV)/.empty
INSTALLED := $(VENV)/.installed
TOOLED := $(VENV)/.tooled
# Archive of the classes that Spark loads in tests, so that it starts faster.
ARCHIVED := $(VENV)/spark.jsa

SOURCES := pyproject.toml Cargo.toml Cargo.lock README.md LICENSE \
	$(shell find rust python -not -path '*/__pycache__*' -not -path '*/target/*' -not -name '*.so')
CHECKED := python/ssbroker python/pyspark_ssbroker tests benches examples scripts/docs_site.py scripts/release_links.py

.PHONY: help demo test build compat wheels release-check docs format lint lint-rust rules bench fuzz ci clean pictures tools tools-with-java

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: tools-with-java $(INSTALLED) ## route a million conversations and reassemble 300,000 messages with PySpark
	@$(IN_VENV) $(PYTHON_OF_VENV) examples/route_a_day/main.py $(ARGS)
	@echo
	@$(IN_VENV) $(PYTHON_OF_VENV) examples/reassemble_a_day/main.py $(ARGS)

test: tools-with-java $(INSTALLED) $(TOOLED) $(ARCHIVED) ## run the tests against the installed release wheel (ARGS="-k word" selects some)
	@scripts/check-tools browser || { echo "skipping the tests that need a browser"; export SSBROKER_WITHOUT_BROWSER=1; }; \
		$(IN_VENV) $(PYTHON_OF_VENV) -m pytest $(WORKERS) $(ARGS)

build: tools $(INSTALLED) ## build the release wheel and install it into .venv
	@echo "built: $$(ls $(VENV)/wheel/*.whl)"

docs: tools $(INSTALLED) $(TOOLED) ## build the documentation site in target/site
	@$(PYTHON_OF_VENV) scripts/docs_site.py

pictures: tools $(INSTALLED) $(TOOLED) ## make the pictures of the HTML report and of the live page for the documentation
	@scripts/check-tools browser
	@$(PYTHON_OF_VENV) -m tests.docs.pictures

format: tools $(INSTALLED) $(TOOLED) ## format Rust and Python, and apply the fixes of the linters
	cargo fmt --all
	$(PYTHON_OF_VENV) -m ruff check --quiet --fix $(CHECKED)
	$(PYTHON_OF_VENV) -m ruff format --quiet $(CHECKED) docs README.md
	$(PYTHON_OF_VENV) -m tests.guards.state_picture --write
	$(PYTHON_OF_VENV) -m tests.guards.public_surface --write

lint: lint-rust $(INSTALLED) $(TOOLED) ## check formatting, lint, types, and the stub of the native module
	$(PYTHON_OF_VENV) -m ruff check --quiet $(CHECKED)
	$(PYTHON_OF_VENV) -m ruff format --quiet --check $(CHECKED) docs README.md
	$(PYTHON_OF_VENV) -m mypy $(CHECKED)
	$(PYTHON_OF_VENV) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(IN_VENV) $(PYTHON_OF_VENV) -m mypy.stubtest ssbroker._core --allowlist .mypy-stubtest-allowlist

lint-rust: tools
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings

compat: tools-with-java $(INSTALLED) ## run every feature on the supported Sparks and pyarrows (ARGS="--lane 'Spark 3.5.1'" selects one)
	@$(PYTHON_OF_VENV) -m tests.compat.lanes .venv/wheel/*.whl --newest $(PYTHON_OF_VENV) $(ARGS)

wheels: tools $(EMPTY) ## build the wheels to publish into dist/: manylinux2014 for each architecture whose Rust target is installed
	@scripts/build-wheels $(PYTHON_OF_VENV)

release-check: wheels ## check the sdist and wheels in dist/: metadata, tags, changelog, and use each in an empty environment
	@scripts/check-release $(PYTHON_OF_VENV) $(ARGS)

rules: ## print the tests of each rule
	@python3 -m tests.guards.rule_tests

bench: tools-with-java $(INSTALLED) $(TOOLED) ## run the benchmarks (BENCH_SHORT=1 for small sizes)
	@$(IN_VENV) $(PYTHON_OF_VENV) -m pytest benches $(ARGS)

fuzz: tools ## fuzz the assembler, its checkpoints and the wire decoder (FUZZ_SECONDS=60 for each target)
	@scripts/fuzz

ci: ## run all checks on a clean machine, as CI does
	./.ci/run

clean: ## remove all build output
	rm -rf $(VENV) dist target .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find python tests benches examples -name __pycache__ -type d -prune -exec rm -rf {} +

tools:
	@scripts/check-tools python rust

tools-with-java:
	@scripts/check-tools python rust java

$(EMPTY): | tools
	@echo "creating $(VENV) with $$(scripts/find-python)"
	@rm -rf $(VENV)
	@"$$(scripts/find-python)" -m venv $(VENV)
	@$(PIP_INSTALL) --upgrade "pip>=25.1" "maturin>=1.9.4,<2"
	@touch $@

$(INSTALLED): $(EMPTY) $(SOURCES) | tools
	@echo "building the release wheel from the unpacked sdist (a few minutes the first time)"
	@rm -rf $(VENV)/wheel $(VENV)/sdist
	@mkdir -p $(VENV)/sdist/unpacked
	@$(PYTHON_OF_VENV) -m maturin sdist --out $(VENV)/sdist >$(VENV)/sdist/log 2>&1 || { cat $(VENV)/sdist/log >&2; exit 1; }
	@tar -xzmf $(VENV)/sdist/*.tar.gz -C $(VENV)/sdist/unpacked --strip-components 1
	@cd $(VENV)/sdist/unpacked && CARGO_TARGET_DIR=$(WHEEL_TARGET) $(PYTHON_OF_VENV) -m maturin build --quiet --release --locked \
		--interpreter $(PYTHON_OF_VENV) --out $(abspath $(VENV))/wheel
	@echo "installing the wheel and its dependencies, including those for the broker and Spark"
	@$(PIP_INSTALL) --force-reinstall --no-deps $(VENV)/wheel/*.whl
	@$(PIP_INSTALL) "$$(ls $(VENV)/wheel/*.whl)[broker,cli,http,local-spark]"
	@touch $@

$(TOOLED): $(EMPTY) pyproject.toml
	@echo "installing the tools for tests, linters and benchmarks"
	@$(PIP_INSTALL) --group dev --group docs --group bench
	@touch $@

$(ARCHIVED): $(TOOLED) | $(INSTALLED)
	@echo "archiving the classes that Spark loads in tests"
	@$(IN_VENV) $(PYTHON_OF_VENV) -m tests.java >$(VENV)/spark.log 2>&1 || { cat $(VENV)/spark.log >&2; exit 1; }
