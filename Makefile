# Two commands do everything on a fresh Debian or Ubuntu machine, as root: `make demo` and `make test`.
# All of them may be repeated; what is there already is not installed again.

VENV := .venv
PYTHON := $(VENV)/bin/python
# The newest of these that is there makes the environment; the CPU build of PyTorch is easiest to get for 3.11.
PYTHONS := python3.11 python3.12 python3.13 python3.10 python3

# pip is silent unless it fails: its warnings are about its own configuration, and about being root.
PIP := $(PYTHON) -m pip install --quiet --quiet

# What `make bench` is told, for example `make bench BENCH='--quick --only hits'`.
BENCH :=

.PHONY: demo test lint bench setup setup-test clean

setup: $(VENV)/.stamp-base

setup-test: $(VENV)/.stamp-test

demo: setup
	$(VENV)/bin/rlscope-ebpf demo --force --output demo.rlscope

test: setup-test lint
	$(PYTHON) -m pytest

lint: setup-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: setup-test
	$(PIP) --editable '.[test,bench]'
	$(PYTHON) -m benchmarks $(BENCH)

$(VENV)/.stamp-system: scripts/install-system-packages
	@mkdir -p $(VENV)
	scripts/install-system-packages
	@touch $@

$(VENV)/.stamp-base: $(VENV)/.stamp-system pyproject.toml setup.py $(wildcard userspace/*.c userspace/*.h userspace/demo/*.c)
	scripts/make-venv $(VENV) $(PYTHONS)
	@echo "Installing rlscope-ebpf and what it needs in $(VENV); the first time takes a minute."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-base tests/requirements-rl.txt tests/requirements-cupti.txt
	scripts/install-system-packages bpftrace gdb
	@echo "Installing what the tests need, PyTorch for one; the first time takes a few minutes."
	@$(PIP) --editable '.[test]'
	@$(PIP) --requirement tests/requirements-rl.txt
	@$(PIP) --no-deps --requirement tests/requirements-cupti.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info rlscope_ebpf/*.so
