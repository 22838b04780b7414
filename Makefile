# Every target sets up what it needs: `make demo` and `make test` work in a fresh checkout.
#
#   PYTHON=python3.12     the interpreter that .venv is made from (>= 3.10)
#   TORCH="torch==2.11.0" the PyTorch to install instead of the one that is chosen
#   TFK_CUDA=0|1          leave out, or insist on, the CUDA kernels
#   JUPYTER_PORT, TENSORBOARD_PORT   8888 and 6006 unless named
#   DEMO_ARGS, BENCH_ARGS, FPGA_ARGS, PYTEST_ARGS, WHEEL_ARGS, TUTORIAL_ARGS   passed on

PYTHON ?= python3
TORCH ?=
TFK_CUDA ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
FPGA_ARGS ?=
PYTEST_ARGS ?=
WHEEL_ARGS ?=
TUTORIAL_ARGS ?=
export TORCH TFK_CUDA

SETUP := $(PYTHON) tools/setup_env.py
VENV := .venv/bin/python

.PHONY: help setup build demo demo-parallel test bench tutorials fpga lint format docs wheel clean containers
.PHONY: dev dev-cpu dev-mac jupyter jupyter-cpu jupyter-mac tensorboard
.DEFAULT_GOAL := help

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 21

setup: ## Make the checkout ready for development, and say what the machine lacks
	@$(PYTHON) tools/setup_dev.py

build: ## Build the libraries into transformer_kernels/lib
	@$(SETUP) run --need compiler
	@$(VENV) tools/build.py -D TFK_TESTS=OFF

demo: build ## Train a small GPT-2 with and without the kernels, time the ops, write report.html
	@$(VENV) -m transformer_kernels demo $(DEMO_ARGS)

demo-parallel: build ## Train a small Llama on two ranks of this machine, split in two ways, and compare
	@$(VENV) -W ignore examples/python/parallel/demo.py

# Tests share the cores: threads that wait for one another must not keep the others from working.
test: export OMP_WAIT_POLICY = passive
test: ## Run the C++ and the Python tests
	@$(SETUP) run --need compiler --need gtest
	@$(VENV) tools/build.py --test -D TFK_TESTS=ON -D TFK_ISAS=all
	@$(VENV) -m pytest -n auto --maxprocesses 8 $(PYTEST_ARGS)

bench: build ## Time every op against its rivals on this machine
	@$(VENV) -m transformer_kernels bench $(BENCH_ARGS)

tutorials: build ## Climb the ladders of kernels of tutorials/, as far as this machine can
	@$(VENV) -m transformer_kernels tutorial all $(TUTORIAL_ARGS)

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

containers: ## Check Dockerfile and compose.yml, and build the image of the CPU as far as the machine can
	@$(SETUP) run lint
	@$(VENV) tools/containers.py

# Where Docker runs, these are services of compose.yml; elsewhere, and on a Mac, programs of .venv.
dev dev-cpu dev-mac: OPEN := shell
jupyter jupyter-cpu jupyter-mac: OPEN := jupyter
tensorboard: OPEN := tensorboard
dev-cpu jupyter-cpu: OPEN += --cpu
dev-mac jupyter-mac: OPEN += --local

dev: ## Open a shell with everything built, in a container where Docker runs
dev-cpu: ## The same, without the GPU
dev-mac: ## The same, without a container: the GPU of a Mac is not seen from inside one
jupyter: ## Start Jupyter on port 8888
jupyter-cpu: ## The same, without the GPU
jupyter-mac: ## The same, without a container
dev dev-cpu dev-mac jupyter jupyter-cpu jupyter-mac tensorboard:
	@$(PYTHON) tools/dev.py $(OPEN)

tensorboard: ## Show the training runs of the folder runs, on port 6006

clean: ## Remove what was built; .venv stays
	rm -rf build dist docs/_build docs/_generated transformer_kernels/lib report.html
