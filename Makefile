# "make demo" and "make test" do all the set-up themselves, once, and again when pyproject.toml or
# constraints.txt change. They need only Python (3.10 or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
RIVALS := $(VENV)/rivals
DOCS := $(VENV)/docs
RELEASE := $(VENV)/release
ZOO := $(VENV)/zoo

.PHONY: demo test slow lint bench docs notebooks dist install clean

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
	$(BIN)/python benchmarks/speed.py

# strict: a broken link, or a public name without a docstring or a place in the reference, fails
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html is the start"

# what the tutorials print and draw, anew
notebooks: $(INSTALLED)
	$(BIN)/python tools/notebooks.py docs/tutorials/*.ipynb

# wheel and sdist, checked
dist: $(RELEASE)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

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
		ultralytics-thop opencv-python-headless polars polars-runtime-32 psutil \
		segmentation-models-pytorch monai torch_geometric
	@touch $@

# only the benchmarks need the other tools that they compare with
$(RIVALS): $(INSTALLED)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[bench]"
	@touch $@

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[docs]"
	@touch $@

$(RELEASE): $(INSTALLED)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[release]"
	@touch $@

clean:
	rm -rf $(VENV) dist site
