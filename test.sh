#!/usr/bin/env bash
# All tests: those of the workspace, of values as JSON, then that the checkers notice
# wrong rules.
# Needs Rust (stable) and a C compiler, nothing else.
set -euo pipefail
cd "$(dirname "$0")"
cargo test --workspace --locked
cargo test -p quorate-core -p quorate --features serde --locked --test serde
cargo test -p quorate-sim --features mutants --locked --test mutants --test storage_mutants
