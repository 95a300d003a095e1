# make train   set up and run the main job: train the two-layer MLP over one CPU worker and two device workers
# make test    set up and pass the tests, what CI runs
# make chaos   random programs while workers are killed, stopped, late and out of memory, and the program interrupted
# make lint    ruff, mypy, import-linter (the tests run them as well)
# make bench   what everything costs, next to NumPy or to what the machine allows, and whether the budgets are met
# make bench-peers   the same work on Interlock, JAX, PyTorch, Ray, Dask and mpi4py; makes environments in .peers
# make clean   remove what these made
#
# Everything goes into .venv. PYTHON=python3.12 chooses another interpreter (3.11 or newer);
# TRAIN="--devices cpu:0,sim:0,sim:1", TEST="tests/pure -k views", CHAOS="--seed 7 --rounds 1000" and BENCH="--quick" pass
# options on.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
ifneq ($(origin PYTHON),file)
ifneq ($(if $(filter clean,$(MAKECMDGOALS)),,$(wildcard $(VENV)/bin/python)),)
$(info $(VENV) is there and stays: PYTHON=$(PYTHON) is not used; `make clean` first makes it anew)
endif
endif
TRAIN ?=
TEST ?=
CHAOS ?=
BENCH ?=

.PHONY: train test chaos lint bench bench-peers clean

train: $(VENV)/with-examples
	$(VENV)/bin/python $(strip examples/mlp.py $(TRAIN))

test: $(VENV)/with-tests build/types
	$(VENV)/bin/python -m pytest $(or $(strip $(TEST)),--numprocesses 3 --dist loadfile)

chaos: $(VENV)/with-tests
	$(VENV)/bin/python -m $(strip tests.stress.chaos $(CHAOS))

lint: $(VENV)/with-tests build/types
	$(VENV)/bin/python -m pytest tests/pure/test_style.py

bench: $(VENV)/with-examples
	$(VENV)/bin/python $(strip benchmarks $(BENCH))

bench-peers: $(VENV)/with-examples
	$(VENV)/bin/python $(strip benchmarks/peers $(BENCH))

$(VENV)/bin/python:
	@$(or $(PYTHON),false) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Interlock needs Python 3.11 or newer with venv$(if $(PYTHON),; $(PYTHON) will not do): install one, or say PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/with-examples: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[examples]'
	@touch $@

$(VENV)/with-tests: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[examples,test,lint]'
	@touch $@

# An editable install goes through an import hook that type checkers do not see: this is the package as they see it.
build/types: pyproject.toml
	@mkdir -p build/types/interlock
	@for part in __init__.py py.typed protocol coordinator worker deploy; do ln -sfn ../../../$$part build/types/interlock/$$part; done
	@touch build/types

clean:
	rm -rf $(VENV) .peers build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
