# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
# Windows has the programs of an environment in another folder.
PROGRAMS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := .venv/$(PROGRAMS)
# The Hexagon compiler has wheels for x86-64 Linux and for Windows only: elsewhere the tests that need it are skipped.
SYSTEM := $(if $(filter Windows_NT,$(OS)),Windows,$(shell uname -s)-$(shell uname -m))
EXTRAS := openvino,cluster,test,docs
ifneq ($(filter Windows Linux-x86_64,$(SYSTEM)),)
EXTRAS := qnn,$(EXTRAS)
endif
# Each of the two begins with a half of the tests, so that what a file prepares is prepared once, and helps the other out.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# Where Python is told to keep no compiled modules, each of the processes that tests start would compile all again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-oldest coverage mutate fuzz lint format bench bench-peers docs clean

demo: .venv/qnn
	rm -rf output/demo
	$(BIN)/intact build --onnx examples/digits_cnn/model.onnx --device qnn --precision uint8 \
		--data examples/digits_cnn/calibration.npz --test-data examples/digits_cnn/test.npz \
		--min-sqnr 30 -o output/demo

test: lint
	$(PYTEST) -m "not slow"

test-all: lint
	$(PYTEST)

# The tests of `make test` with the oldest versions that pyproject.toml allows; what those warn of, later ones mended.
test-oldest: .venv-oldest/test
	.venv-oldest/$(PROGRAMS)/python -m pytest -n 2 --dist worksteal -m "not slow" -W "ignore::DeprecationWarning"

# The tests of `make test` with their lines counted, which takes more than twice the time: see CONTRIBUTING.
coverage: .venv/test
	mkdir -p output
	$(PYTEST) -m "not slow" --cov --cov-report=html
	@echo "lines of src/intact that tests run: $$($(BIN)/coverage report --format=total) % (output/coverage/index.html)"

# Goes on where it stopped; output/mutation holds what is known.
mutate: .venv/test
	$(BIN)/python -m tests.mutation

# Seconds of each kind of file; FUZZ names some kinds alone, such as FUZZ="models npz".
SECONDS ?= 600
fuzz: .venv/test
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(FUZZ)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "output/site/index.html"

bench: .venv/test
	for part in rewriting zero_points quantizer accuracy search mixed cluster; do $(BIN)/python bench/$$part.py || failed=1; done; \
		test -z "$$failed"

# Beside other quantizers, each in an environment of its own: bench/RESULTS.md. PEERS="--quick", or
# PEERS="--model m.onnx --data d.npz" for a model of your own, writes to output/peers instead.
bench-peers: .venv/test
	$(BIN)/python -m bench.peers $(PEERS)

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/qnn: .venv/pyvenv.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[qnn]"
	touch $@

.venv/test: .venv/pyvenv.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@

.venv-oldest/test: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/$(PROGRAMS)/python tests/oldest.py > .venv-oldest/constraints.txt
	.venv-oldest/$(PROGRAMS)/python -m pip install --quiet --constraint .venv-oldest/constraints.txt --editable ".[openvino,test]"
	touch $@

# Tests of Hugging Face models run where this is installed, and are skipped elsewhere: torch is large.
.venv/hf: .venv/test
	$(BIN)/python -m pip install --quiet --editable ".[hf]" "torch==2.13.0"
	touch $@

# Tests of Rockchip models run where this is installed, and are skipped elsewhere. The vendor's packages conflict with
# ours: they go to an environment of their own in the user's cache, where the next checkout finds them.
.venv/rknn: .venv/test src/intact/backends/rknn/toolchain.py
	$(BIN)/intact toolchain install rknn
	touch $@

clean:
	rm -rf .venv .venv-oldest output build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
