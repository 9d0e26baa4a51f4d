# "make demo" and "make test" do all the set-up themselves, once, and again when pyproject.toml or
# constraints.txt change. They need only Python (3.10 or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
RIVALS := $(VENV)/rivals
ZOO := $(VENV)/zoo

.PHONY: demo test slow lint bench install clean

demo: $(INSTALLED)
	$(BIN)/fadeout demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

slow: $(ZOO)
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(ZOO)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(RIVALS)
	$(BIN)/python benchmarks/run.py

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit('Fadeout needs Python 3.10 or newer: make PYTHON=...' if sys.version_info < (3, 10) else 0)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[experiments,export,dev]"
	@touch $@

# Trainers and networks of others, which the slow tests and the examples use. Some want a torchvision of another
# PyTorch: without it, and without their other dependencies, they serve (tests/support/torchvision_stubs.py)
$(ZOO): $(INSTALLED)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[zoo]"
	$(BIN)/python -m pip install --constraint constraints.txt --no-deps timm torchvision ultralytics \
		ultralytics-thop opencv-python-headless polars polars-runtime-32 psutil
	@touch $@

# only the benchmarks need the other tools that they compare with
$(RIVALS): $(INSTALLED)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[bench]"
	@touch $@

clean:
	rm -rf $(VENV) dist
