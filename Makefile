# Two commands do everything, each creating what it needs: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where there is no NVIDIA GPU, the CPU build of PyTorch: the default Linux wheel brings gigabytes of CUDA.
TORCH ?= torch==2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
RUNS ?= runs/demo

.PHONY: demo test test-slow lint clean

demo: $(VENV)/.demo
	rm -rf $(RUNS) && mkdir -p runs
	$(BIN)/bluegrad plan --steps 200 --epochs 10 --epsilon 8 --plot runs/plan.png
	$(BIN)/bluegrad compare --mechanisms dp-sgd,lambda-cgd --seeds 5 --out $(RUNS)

test: $(VENV)/.test lint
	$(BIN)/python -m pytest

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	@if command -v nvidia-smi >/dev/null 2>&1; then \
		echo "GPU found: installing PyTorch as pip resolves it"; $(BIN)/pip install --quiet torch; \
	else \
		echo "no GPU: installing the CPU build of PyTorch"; \
		$(BIN)/pip install --quiet "$(TORCH)+cpu" 2>/dev/null \
			|| $(BIN)/pip install --quiet "$(TORCH)" --index-url $(TORCH_CPU_INDEX); \
	fi
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml $(wildcard native/*)
	$(BIN)/pip install --quiet -e ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml $(wildcard native/*)
	$(BIN)/pip install --quiet -e ".[demo,test]"
	touch $@

clean:
	rm -rf $(VENV)
