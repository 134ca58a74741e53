# Every target sets itself up: a virtual environment under the checkout, pinned by constraints.txt.
# The stamp makes the second run start at once; editing pyproject.toml or constraints.txt renews it.
PYTHON ?= python3
VENV   ?= .venv
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
RUN    := $(VENV)/bin/python -m
JOBS   ?= auto
TOOLS  ?= any
# Set on some machines; the many processes that the tests start would each compile the same modules anew.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu lint format docs bench results clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY)   ## the main job: see what Lutetia does, in minutes
	$(RUN) lutetia demo

test: $(DEV)   ## the tests this machine's tools allow, on all cores, then a list of what was skipped and why
	$(RUN) pytest -n $(JOBS) --dist worksteal --tools $(TOOLS)

test-slow: $(DEV)  ## the long tests
	$(RUN) pytest -m slow

test-gpu: $(DEV)   ## the tests that need a CUDA device
	$(RUN) pytest -m gpu

lint: $(DEV)   ## ruff and mypy
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

format: $(DEV) ## let ruff format the sources
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

docs: $(DEV)   ## the documentation, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

bench: $(READY)  ## list the benchmarks; make bench NAME=lut_step runs one
	$(RUN) lutetia bench $(NAME)

results: $(READY)  ## write the results pages and README's table from benchmarks/results
	$(VENV)/bin/python tools/make_results.py

clean:           ## remove the environment and everything built
	rm -rf $(VENV) site out runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt tools/install.py tools/hashes.txt
	$(PYTHON) tools/install.py $(VENV)

$(DEV): pyproject.toml constraints.txt tools/install.py tools/hashes.txt tools/peers.txt
	$(PYTHON) tools/install.py $(VENV) --dev
