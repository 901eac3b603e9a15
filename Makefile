.DEFAULT_GOAL := help
.PHONY: help test lint vulncheck apidiff strangers cross demo bench soak fuzz ci lab lab-test lab-down operator-test test-integration-kvm

help: ## Show this.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Crawl a site on loopback through proxies in the process.
	cd examples && go run ./crawler -demo

test: ## Build, vet and test every module; needs Go alone.
	@scripts/test

lint: ## Format, dependencies and linters.
	@scripts/lint

vulncheck: ## Known vulnerabilities in what every module builds from.
	@scripts/vulncheck

apidiff: ## How the API differs from the last tag, or from before the last change of CHANGELOG.md.
	@scripts/apidiff

strangers: ## Programs outside of this repository use the module, from a module proxy.
	EGRESS_STRANGERS=1 go test -count=1 -v -run TestStrangers ./internal/archtest

cross: ## Check that every module builds for Linux and macOS.
	@scripts/cross

bench: ## Measure beside peers; RUN=REGEXP for some of it.
	@scripts/bench "$(RUN)"

soak: ## A fleet through bad weather: 30 days of fake time, 20 minutes of real proxies, 20 of a serve that is killed.
	EGRESS_SOAK_DAYS=30 EGRESS_SOAK=20m go test -run TestSoak -count=1 -v -timeout 60m ./fleet
	cd examples && EGRESS_SOAK=20m go test -run TestSoakServe -count=1 -v -timeout 60m ./cli

fuzz: ## Fuzz every parser for FUZZTIME each, 20s if not given.
	@scripts/fuzz $(FUZZTIME)

lab: ## Bring up a hypervisor in namespaces of its own (root, Debian).
	@lab/up

lab-test: ## Prove the kvm provider and a crawl through a VM on the lab; FULL=1 for more.
	@scripts/lab-test

operator-test: ## Prove the operator on a real API server, which is built at first: minutes.
	@scripts/operator-test

lab-down: ## End the lab.
	@lab/down

test-integration-kvm: ## Prove the kvm provider on your hypervisor, by KVM_TEST_*.
	@scripts/test-integration-kvm

ci: ## What a change must pass, as far as this machine can do it; docs/testing.md has what.
	@.ci/run
