# `make demo` and `make test` are the two to know; `make help` lists the rest.
JOBS ?= $(shell nproc)
ARGS ?=
PREFIX ?= /usr/local
DESTDIR ?=
PRESET := release
BIN := build/$(PRESET)/bin

.DEFAULT_GOAL := help
# The set-ups of two goals are one environment; compilers run side by side inside a goal.
.NOTPARALLEL:
.PHONY: help setup test-setup configure build demo install wheel release test check-full cuda image fuzz bench mutants study-algorithms study-quantised docs pictures format

help:            ## this list
	@sed -n 's/^\([a-z-]*\): *.*## /  make \1: /p' $(MAKEFILE_LIST)

setup:           ## install what is missing: system packages, .deps/venv, the demo's model
	@deploy/setup/install.sh

test-setup:      ## setup, and the programs that tests and benchmarks run beside ours
	@deploy/setup/install.sh --tests

configure: setup
	@cmake --preset $(PRESET) -Wno-dev --log-level=WARNING

build: configure ## setup, then the programs into build/release/bin
	@cmake --build build/$(PRESET) --target tandem_binaries -j $(JOBS)

demo: build      ## train SmolLM2-135M on the CPU and write a report; extra arguments in ARGS="..."
	@$(BIN)/tandem demo $(ARGS)

install: build   ## programs, libraries and examples into PREFIX (/usr/local), below DESTDIR where it is given
	@deploy/setup/install.sh --install
	@deploy/setup/copy_programs.sh $(BIN) "$(DESTDIR)$(PREFIX)"

wheel: build     ## the Python package with the programs in it, for pip install, into build/wheel
	@deploy/setup/install.sh --wheel
	@.deps/wheel-venv/bin/python deploy/release/build_wheel.py --bin $(BIN) --out build/wheel

release: build   ## wheel, archives, image, SBOMs, digests and their page into build/release-files (ARGS=--without-image)
	@deploy/setup/install.sh --wheel
	@.deps/wheel-venv/bin/python deploy/release/release.py --bin $(BIN) --out build/release-files $(ARGS)

test: test-setup configure ## build everything and run the tests that need no accelerator
	@cmake --build build/$(PRESET) -j $(JOBS)
	@ctest --preset $(PRESET) -j 2

check-full:      ## every test, the slow ones too, the cuda build, and a minute of each fuzz target
	@deploy/setup/install.sh --slurm
	@deploy/setup/install.sh --observability
	@deploy/setup/install.sh --kubernetes
	@deploy/setup/install.sh --container
	@deploy/setup/install.sh --engines
	@$(MAKE) configure
	@cmake --build build/$(PRESET) -j $(JOBS)
	@ctest --preset full -j 2
	@$(MAKE) cuda
	@$(MAKE) fuzz

cuda:            ## compile and link the CUDA path into build/cuda; no GPU is needed (docs/dev/cuda.md)
	@deploy/setup/install.sh --cuda
	@cmake --preset cuda -Wno-dev --log-level=WARNING
	@cmake --build --preset cuda -j $(JOBS)

image:           ## the container image by buildah, podman or docker; VARIANT=cuda for GPUs (docs/container.md)
	@deploy/container/build.sh $(or $(VARIANT),cpu) $(ARGS)

fuzz:            ## libFuzzer on whatever reads foreign bytes: SECONDS of each target (60)
	@deploy/setup/install.sh --fuzz
	@cmake --preset fuzz -Wno-dev --log-level=WARNING
	@cmake --build --preset fuzz -j $(JOBS)
	@tests/fuzz/run.sh $(or $(SECONDS),60)

bench: test-setup build ## rollout and trainer beside transformers and TRL, and the weight push: one JSON line each
	@cmake --build build/$(PRESET) --target trainer_bench -j $(JOBS)
	@.deps/venv/bin/python tests/bench/rollout_bench.py
	@.deps/venv/bin/python tests/bench/trainer_bench.py
	@$(BIN)/tandem bench push --model models/smollm2-135m-instruct --num-servers 1,2 --json
	@rm -rf runs/bench && $(BIN)/tandem demo --steps 5 --out runs/bench --name fp32 --set server.engine.dtype=fp32 \
	  --set trainer.eval.at_start=false --set trainer.eval.at_end=false --set trainer.capture.spread=0
	@.deps/venv/bin/python tests/bench/training/trl_step_bench.py --dtype fp32 --tandem runs/bench/fp32

mutants: test-setup configure ## put each known bug in by a patch and see its test fail
	@.deps/venv/bin/python tests/mutants/run_mutants.py $(ARGS)

study-algorithms: test-setup build ## every algorithm on two tasks, losses of pairs beside TRL's, seven of them under an engine gap: over an hour (ARGS=--quick: some minutes)
	@.deps/venv/bin/python tests/studies/algorithms.py --tandem $(BIN)/tandem --out $(or $(OUT),runs/study) $(ARGS)

study-quantised: test-setup build ## bf16, int8, fp8 and int4 rollouts under five corrections on two tasks: about two hours (ARGS=--quick: some minutes)
	@.deps/venv/bin/python tests/studies/quantised/quantised.py --tandem $(BIN)/tandem --out $(or $(OUT),runs/study) $(ARGS)

docs:            ## the pages of docs/ as a site with search, into build/site
	@deploy/setup/install.sh --docs
	@NO_MKDOCS_2_WARNING=1 .deps/docs-venv/bin/mkdocs build --strict

pictures: build  ## the pictures of README.md, of a demo run with its report and its attribution; RUN=DIR takes a run that is there
	@deploy/setup/install.sh --pictures
	@PATH=$(CURDIR)/$(BIN):$$PATH .deps/pictures-venv/bin/python docs/figures/report_pictures.py $(RUN)

format:          ## clang-format on every C++ file
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i
