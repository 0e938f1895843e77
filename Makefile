# Every target makes the environment it needs (.venv, from requirements.lock) by itself.

# The first Python from 3.11 on; `make PYTHON=/path/to/python3.13 …` picks another.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
# What `make test` hands to pytest: make test PYTEST="tests/unit -k batches"
PYTEST ?= tests
# The two lanes of tests/conftest.py, one process each.
LANES := -n 2 --dist loadscope
# How tests/unit runs on all cores: a worker that has nothing left takes tests from another. Each imports all of the
# tests; where nothing compiled may be kept, it would also compile all of them, in ten more seconds.
UNITS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --dist worksteal
# Hypothesis' profile of tests/conftest.py in `make unit`: it tries each property with a fifth of its examples.
SHORT := --hypothesis-profile=short
# Helm for what `make docs` renders: that of the tests, once they have built it, or make docs HELM=/path/to/helm
HELM ?= $(wildcard .cache/go/kubernetes_tools/helm4)
# make e2e E2E=tests/e2e/test_scale.py
E2E ?= tests/e2e
# make profile NAME=produce: one of bench's questions
NAME ?= small_requests
# make images: what builds them (IMAGE_BUILD="docker build"), where they will be pushed (REGISTRY=registry.example), on what
IMAGE_BUILD ?= buildah build --layers
REGISTRY ?=
BASE_IMAGE ?= docker.io/library/python:3.13-slim
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
# make spark-kills KILLS=1000
KILLS ?= 200
# make swarm SEEDS=0-99999
SEEDS ?= 0-9999

# What pip does for all but editable installations. Where PYTHONDONTWRITEBYTECODE is set, each start would do it again.
COMPILE := $(BIN)/python -m compileall -q ottla broker controller operator

.PHONY: help setup unit test crash spark-kills lint format demo bench profile swarm swarm-operator e2e e2e-short images docs lock clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 11

setup: $(VENV)/.setup  ## .venv with everything; .venv/bin/ottla works afterwards

$(VENV)/.setup: pyproject.toml requirements.lock hatch_build.py ottla/protocol/_record_walk.c
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: install it, or say make PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing $$(grep -c '==' requirements.lock) packages into $(VENV): the first time this takes minutes."
	$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(COMPILE)
	@touch $@

unit: setup  ## tests/unit on all cores
	$(UNITS) $(SHORT) -q tests/unit

# All tests: those of units go first, on all cores. The rest talks to processes with time-outs, so it runs in order, in two
# lanes. It doesn't begin where pytest ends with more than 1, which is for tests that fail: 2 is for Ctrl-C.
test: lint  ## lint, then every test; the last line is pytest's
ifeq ($(PYTEST),tests)
	@echo "All tests: tests/unit first, on all cores, which takes minutes; then the other folders, two at a time, which takes"
	@echo "much longer, and says when each begins. The first run also fetches and builds other people's programs into"
	@echo ".cache (Go clients, a Kubernetes API server and Helm; Java's clients, by Maven), which takes minutes more."
	@units=0; \
	$(UNITS) tests/unit || units=$$?; [ $$units -le 1 ] || exit $$units; \
	OTTLA_UNITS=$$units $(BIN)/python -m pytest $(LANES) --durations=40 tests --ignore=tests/unit || exit $$?; \
	exit $$units
else
	$(BIN)/python -m pytest $(PYTEST)
endif

crash: setup  ## kill, pause, cut off, fill up and move under load, for an hour and a half
	OTTLA_CRASH=long $(BIN)/python -m pytest -s tests/crash

spark-kills: setup  ## kill the processes of an exactly-once stream at every step, and brokers (KILLS=200)
	OTTLA_SPARK_KILLS=$(KILLS) $(BIN)/python -m pytest -s tests/spark/test_exactly_once.py -k kills

lint: setup  ## ruff, mypy strict, the layers, the house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy ottla broker controller operator bench tests/e2e
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py

format: setup  ## what ruff can put right by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup  ## three brokers, one of them killed, 336,776 flights, and a Spark job over them
	$(BIN)/python examples/flights.py

bench: setup  ## throughput, latency, start-up and memory, beside Apache Kafka
	$(COMPILE)
	$(BIN)/python -m bench

profile: setup  ## a flame graph of the brokers, and of Python clients, under a question of bench (NAME=produce)
	FAST=1 ONLY=$(NAME) $(BIN)/py-spy record --subprocesses --rate 250 --output bench/results/$(NAME).svg \
		-- $(BIN)/python -m bench

swarm: setup  ## simulated clusters under every fault, one a seed (SEEDS=0-9999)
	$(BIN)/python -m tests.simulation.swarm --seeds $(SEEDS)

swarm-operator: setup  ## the operator under every fault, one a seed (SEEDS=0-9999)
	$(BIN)/python -m tests.simulation_operator.swarm --seeds $(SEEDS)

e2e: setup  ## scenarios on a real Kubernetes, that of KUBECONFIG (E2E=tests/e2e/test_scale.py for one)
	$(BIN)/python -m pytest -s $(E2E)

e2e-short: setup  ## those of them that fit 15 minutes
	.ci/e2e

images:  ## ottla, ottla-etcd and ottla-spark, by buildah: no daemon (IMAGE_BUILD="docker build", REGISTRY=…)
	$(foreach image,ottla=broker ottla-etcd=etcd ottla-spark=spark,$(call build-image,$(subst =, ,$(image))))

# A line of its own for each image: NAME TARGET
define build-image
$(IMAGE_BUILD) --target $(word 2,$(1)) --build-arg BASE_IMAGE=$(BASE_IMAGE) \
	-t $(if $(REGISTRY),$(REGISTRY)/)$(word 1,$(1)):$(VERSION) .

endef

docs: setup  ## what is generated: pages of docs/, charts' schemas and tables, manifests/
	$(BIN)/python -m ottla.broker.documentation
	$(BIN)/python -m ottla.operator.manifests $(if $(HELM),--helm $(HELM))

lock:  ## requirements.lock anew, for Python 3.11 to 3.14 on every platform (uv resolves; pip installs)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing" >&2; exit 1; }
	@test -x .cache/lock/bin/uv || { $(PYTHON) -m venv .cache/lock && .cache/lock/bin/pip install --quiet uv; }
	.cache/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --extra dev --output-file requirements.lock $(LOCK) pyproject.toml

clean:  ## what the targets made, downloads kept
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
