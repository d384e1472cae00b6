# bucketsim: `make` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help run test test-all test-gpu check fix chaos bench golden screenshots clean

PYTHON ?= python3
BIN := .venv/bin
RUN := runs/latest
ROUNDS ?= 20
SEED ?= 0

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/runs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable .
	@touch $@

.venv/installed: .venv/runs  # and what tests and their oracles need
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --no-build-isolation --constraint constraints.txt deepspeed
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt HolisticTraceAnalysis  # an oracle; asks for JupyterLab
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt megatron-core  # an oracle; needs torch alone
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # or each process of tests would; templates are no Python
	@touch $@

run: .venv/runs  ## Tune a bundled recording, replay it on local ranks, open the dashboard
	rm -rf $(RUN)
	$(BIN)/bucketsim demo -o $(RUN)

test test-all: export PYTHONDONTWRITEBYTECODE :=  # hundreds of processes: each would compile what it imports

# Slow tests wait much for ranks, so that three processes suit two cores. A test that hangs ends its process
# after 25 minutes, named and with its stack, instead of holding all up; of slow ones some take as long. A process
# that dies is not replaced: where xdist 3.8 replaced one, the run waited without end for tests that it had lost.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --max-worker-restart 0

test: .venv/installed  ## Run the tests that a user needs to trust the checkout
	$(PYTEST) --numprocesses 2 -o faulthandler_timeout=1500 -o faulthandler_exit_on_timeout=true

test-all: .venv/installed  ## Run every test, the slow ones too
	BUCKETSIM_TESTS=all $(PYTEST) --numprocesses 3 -m ''

# Where a GPU is, torch for it is there: nothing is installed, and no more of tests' own packages is needed than pytest.
test-gpu:  ## Run the tests that need a GPU, by PYTHON with torch, bucketsim's dependencies and pytest
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m gpu --noconftest -p tests.dist.conftest --continue-on-collection-errors \
		tests/recorder/test_recording_on_gpu.py tests/autotune/test_on_gpus.py tests/dist/test_links.py

check: .venv/installed  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: .venv/installed  ## Let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chaos: .venv/installed  ## Hurt what starts processes, ROUNDS=20 times: kills, pauses, full disks, slow ranks
	ROUNDS=$(ROUNDS) SEED=$(SEED) $(BIN)/python -m pytest tests/chaos/test_rounds.py -m slow

bench: .venv/installed  ## Benchmarks: writes traces/tools/bench/README.md, row by row
	OMP_NUM_THREADS=1 $(BIN)/python -m traces.tools.bench

golden: .venv/installed  ## Keep anew what every command and page says (tests/golden), and tell what changed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden

screenshots: .venv/installed  ## Take the pictures of the dashboard anew
	$(BIN)/python -m tests.app.browser.pictures

clean:  ## Remove what was built and run
	rm -rf .venv runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
