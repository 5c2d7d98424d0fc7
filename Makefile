# The two commands of the README are `make serve` (or go run ./cmd/sluice serve) and `make test`.
SHELL := /bin/bash
GO ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X main.version=$(VERSION)
export CGO_ENABLED ?= 0

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-22s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build the release binary, bin/sluice
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice

.PHONY: build-unsafe
build-unsafe: ## Build bin/sluice-unsafe, in which guards can be taken out (drills and benchmarks only; loopback only)
	$(GO) build -trimpath -tags unsafe_guards -ldflags '$(LDFLAGS)' -o bin/sluice-unsafe ./cmd/sluice

.PHONY: serve
serve: ## Serve the built-in model on 127.0.0.1:8080
	$(GO) run ./cmd/sluice serve

.PHONY: test
test: ## All quick tests: release build, and the build in which guards can be taken out
	$(GO) vet ./...
	$(GO) test ./...
	$(GO) vet -tags unsafe_guards ./...
	$(GO) test -tags unsafe_guards ./internal/... ./cmd/...

.PHONY: race
race: ## All tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -short -timeout 20m ./...

FUZZTIME ?= 10s
.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME (default 10s) each
	@set -e; once() { $(GO) test -run '^$$' -fuzz "^$$2\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s $$1; }; \
	for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "fuzz $$pkg $$f"; out=$$(once $$pkg $$f 2>&1) && echo "$$out" && continue; echo "$$out"; \
	    case "$$out" in *"Failing input"*) exit 1;; *"context deadline exceeded"*) echo "its time ran out under the fuzzer's own hands, nothing was found: once more"; once $$pkg $$f;; *) exit 1;; esac; done; done

.PHONY: lint
lint: ## golangci-lint, pinned in tools/go.mod
	$(GO) tool -modfile=tools/go.mod golangci-lint run --allow-parallel-runners ./...

.PHONY: vuln
vuln: ## govulncheck (needs the public vulnerability database, so it is not part of CI)
	$(GO) tool -modfile=tools/go.mod govulncheck ./...

.PHONY: generate
generate: ## Regenerate the assembly
	$(GO) generate ./...

.PHONY: e2e-check-vllm
e2e-check-vllm: build ## sluice check against a real vLLM CPU worker (downloads it; minutes and gigabytes; environment in .cache/)
	bench/check/vllm_live.sh

SHARED ?= ../shared
VLLM_ENV ?= .cache/check-vllm
VLLM_CLIENTS ?= .cache/e2e-clients
E2E_VLLM_RUN ?= .cache/e2e-vllm
E2E_VLLM := $(GO) run ./bench/e2e/vllm -env $(VLLM_ENV) -clients $(VLLM_CLIENTS) -run $(E2E_VLLM_RUN) -shared $(SHARED)
.PHONY: e2e-vllm
e2e-vllm: ## A real vLLM pair over NIXL behind sluice gateway: misuse, odd bodies, slow decodes, 5,000 honest requests, load clients (4 GB of disk, 5 of memory, 35 minutes; needs SHARED=../shared)
	bench/e2e/vllm/install.sh $(VLLM_ENV) $(VLLM_CLIENTS)
	rm -f $(E2E_VLLM_RUN)/results.json
	trap '$(E2E_VLLM) down' EXIT; ok=true; \
	$(E2E_VLLM) -cache=false up misuse late down || ok=false; \
	$(E2E_VLLM) -lease 3m up misuse odd traffic clients || ok=false; \
	$(E2E_VLLM) -lease 3m -first-token -requests 1500 traffic || ok=false; \
	$(E2E_VLLM) -write report && $$ok

.PHONY: e2e-clients
e2e-clients: ## vllm bench serve, guidellm and aiperf, unmodified, against sluice gateway in front of the pair of make e2e-vllm (10 minutes)
	bench/e2e/vllm/install.sh $(VLLM_ENV) $(VLLM_CLIENTS)
	trap '$(E2E_VLLM) down' EXIT; $(E2E_VLLM) up clients

E2E_SGLANG ?= .cache/e2e-sglang
.PHONY: e2e-sglang
e2e-sglang: ## A real SGLang pair, attacked and used through the gateway (downloads it; 4 GB of disk and memory; 25 minutes on a busy machine; STEP=known: one step)
	bench/e2e/sglang/env/install.sh $(E2E_SGLANG)
	$(GO) run ./bench/e2e/sglang -env $(E2E_SGLANG) -write $(or $(STEP),all)

.PHONY: bench-check
bench-check: ## sluice check on a 1 GB log and on 1,000 fake workers
	bench/check/log.sh
	$(GO) test -run '^$$' -bench . -benchtime 1x ./internal/check/...

.PHONY: drill
drill: build build-unsafe ## Every fault class (quick), and the incident on content: against all guards, then each guard alone and none
	bin/sluice drill incident
	bin/sluice-unsafe drill incident
	bin/sluice drill --quick

.PHONY: drill-matrix
drill-matrix: build build-unsafe ## Every fault class at every phase (minutes): release, then each cell without its guard; HTML in bin/
	bin/sluice drill --format html --output bin/drill.html
	bin/sluice-unsafe drill --format html --output bin/drill-unsafe.html

PAGES ?= 10000000
.PHONY: soak
soak: build ## PAGES (default 10^7) page hand-overs under clients that hang up; every page must come back, zero
	bin/sluice drill soak --pages $(PAGES)

.PHONY: promises
promises: build build-unsafe ## Write docs/promises.md: each promise, its command, its last figures (SLOW=1: the mutants, too)
	$(GO) run ./internal/drill/promises $(if $(SLOW),-slow,) -pages $(if $(filter command line,$(origin PAGES)),$(PAGES),1000000)

.PHONY: three
three: ## The tests that run gateway, prefill and decode as three processes, kill -9 and abort storms included
	$(GO) test -count 1 -v -run 'Process|Socket|Stopped|Storm|Killed' ./cmd/sluice

MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
.PHONY: lying-table
lying-table: ## Every lie of the catalogue told to the gateway by workers of every engine, in every kind of reply; prints what came of it
	$(GO) test -count 1 -v -run 'TestLyingTable$$' ./internal/gateway/lyingtable -args -full

.PHONY: soak-gateway
SOAK ?= 100000
soak-gateway: ## SOAK (default 100,000) mixed requests of clients that change their minds, on every engine, through one gateway process to honest workers, and 10,000 clients that hang up: no incident, every page back, nothing kept
	$(GO) test -count 1 -v -timeout 60m -run 'TestSoakHasNoFalseAlarm' ./internal/gateway/lyingtable -args -soak $(SOAK) -users 32
	$(GO) test -count 1 -v -timeout 60m -run TestSoakUnderRestarts ./internal/gateway/lyingtable
	$(GO) test -count 1 -v -timeout 60m -run TestManyClientsHangUp ./internal/gateway/lyingtable -args -hangups 10000

.PHONY: model-check
model-check: ## Explore the protocol's model in all its sizes, and follow all of its steps with the code (minutes; the quick part is in make test)
	$(GO) test -count=1 -v -timeout 30m -run 'TestBothWays|TestEvery|TestLarge' ./internal/handoff/model -args -full
	$(GO) test -count=1 -v -timeout 30m -run 'TestEvery' ./internal/handoff/sim -args -full

.PHONY: spin
spin: ## The Spin twin of the model: safety and liveness, a table (needs spin and gcc)
	spec/run.sh

PROMTOOL ?= promtool
.PHONY: check-alerts
check-alerts: ## Check and test deploy/alerts.yaml (needs promtool, of the package prometheus; PROMTOOL=PATH)
	$(PROMTOOL) check rules deploy/alerts.yaml
	cd deploy && $(PROMTOOL) test rules alerts_test.yaml

.PHONY: check-container
check-container: ## Run the build steps of deploy/Containerfile, and its image's binary in an empty root
	deploy/container.sh

.PHONY: metrics-doc
metrics-doc: ## Write docs/metrics.md from what a gateway registers
	$(GO) test -count 1 -run TestMetricsAreDocumented ./internal/gateway -args -write-docs

.PHONY: mutants
mutants: ## Take each guard out of the real code and run the tests: every mutant must be killed (20 minutes); the table is docs/mutants.md
	$(GO) run ./internal/drill/mutants -table docs/mutants.md

.PHONY: model
model: $(MODEL) ## Fetch SmolLM2-135M-Instruct (Q4_1, Apache-2.0) into models/
$(MODEL):
	bench/model/fetch.sh $(MODEL)

.PHONY: bench
bench: ## What the guards cost, the handoff's speed, memory, start-up, refusals (10 minutes on a quiet machine; results: bench/RESULTS.md)
	$(GO) run ./bench/native

PEERS := .cache/e2e-peers
.PHONY: peers
peers: ## Install the gateways that sluice is compared with, pinned, into .cache/ (needs python3 with venv; 300 MB)
	bench/peers/install.sh $(PEERS)

.PHONY: e2e-peers
e2e-peers: peers ## The same lying workers behind other gateways and sluice: what clients get (results: docs/peers.md)
	$(GO) run ./bench/peers -env $(PEERS)

.PHONY: bench-gateway
bench-gateway: peers ## What a gateway costs, beside the others in one run, and its memory (20 minutes; results: bench/RESULTS.md)
	$(GO) run ./bench/gateway -env $(PEERS) -save $(PEERS)/cells.json -chart bench/gateway.svg

.PHONY: bench-128k
bench-128k: ## Serve a needle in a prompt of 128,000 tokens, and print the time
	$(GO) run ./bench/native -part long

.PHONY: conformance
conformance: ## The public openai clients for Go and npm, unmodified, against a started sluice serve (needs node and npm)
	conformance/run.sh

.PHONY: conformance-gateway
conformance-gateway: ## The same clients, and before plain workers those of Anthropic's API, against sluice gateway before fake workers
	BEHIND="sglang vllm mooncake plain plain-sglang" conformance/run.sh

.PHONY: chat-check
chat-check: $(MODEL) ## SmolLM2 through three processes: one text for every page size, chunk and crowd
	$(GO) run ./bench/chat -model $(MODEL)

.PHONY: llamacpp
llamacpp: $(MODEL) ## Token ids and greedy text against llama.cpp (needs node 20 and npm)
	bench/llamacpp/compare.sh $(MODEL)
