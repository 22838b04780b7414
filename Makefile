# Every target sets up what it needs: `make demo` and `make test` work in a fresh checkout.
#
#   PYTHON=python3.12     the interpreter that .venv is made from (>= 3.10)
#   TORCH="torch==2.11.0" the PyTorch to install instead of the one that is chosen
#   TFK_CUDA=0|1          leave out, or insist on, the CUDA kernels
#   DEMO_ARGS, BENCH_ARGS, FPGA_ARGS, PYTEST_ARGS, WHEEL_ARGS   passed on

PYTHON ?= python3
TORCH ?=
TFK_CUDA ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FPGA_ARGS ?=
PYTEST_ARGS ?=
WHEEL_ARGS ?=
export TORCH TFK_CUDA

SETUP := $(PYTHON) tools/setup_env.py
VENV := .venv/bin/python

.PHONY: help build demo test bench fpga lint format docs wheel clean
.DEFAULT_GOAL := help

help: ## Say what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 14

build: ## Build the libraries into transformer_kernels/lib
	@$(SETUP) run --need compiler
	@$(VENV) tools/build.py -D TFK_TESTS=OFF

demo: build ## Train a small GPT-2 with and without the kernels, time the ops, write report.html
	@$(VENV) -m transformer_kernels demo $(DEMO_ARGS)

test: ## Run the C++ and the Python tests
	@$(SETUP) run --need compiler --need gtest
	@$(VENV) tools/build.py --test -D TFK_TESTS=ON
	@$(VENV) -m pytest -n auto --maxprocesses 8 $(PYTEST_ARGS)

bench: build ## Time every op against its rivals on this machine
	@$(VENV) -m transformer_kernels bench $(BENCH_ARGS)

fpga: ## Check, simulate, prove, place and route the FPGA array
	@$(SETUP) run fpga $(addprefix --need ,compiler verilator yosys z3 nextpnr-ice40)
	@$(VENV) -W 'ignore:transformer_kernels runs PyTorch formulas' tools/fpga.py $(FPGA_ARGS)

lint: ## Check layout, format, types and common mistakes
	@$(SETUP) run lint --need compiler
	@$(VENV) tools/lint.py

format: ## Rewrite the sources in the project's format
	@$(SETUP) run lint
	@$(VENV) tools/lint.py --fix

docs: ## Build the documentation into docs/_build/html
	@$(SETUP) run docs --need compiler --need doxygen
	@$(VENV) tools/build_docs.py

wheel: ## Build a wheel for other machines into dist, and try it; --cuda in WHEEL_ARGS
	@$(SETUP) run wheel --need compiler
	@$(VENV) tools/build_wheel.py $(WHEEL_ARGS)

clean: ## Remove what was built; .venv stays
	rm -rf build dist docs/_build docs/_generated transformer_kernels/lib report.html
