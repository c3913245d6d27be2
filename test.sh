#!/usr/bin/env bash
# All tests: those of the workspace, of values as JSON, with a client that was written for
# etcd, then that the checkers notice wrong rules.
# Needs Rust (stable) and a C compiler, nothing else.
set -euo pipefail
cd "$(dirname "$0")"
cargo test --workspace --locked
cargo test -p quorate-core -p quorate --features serde --locked --test serde
# That client's build script calls protoc: as much of it as is needed is an example of ours.
cargo build -p quorate-proto --example protoc --locked
PROTOC="${PROTOC:-${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/protoc}" \
  cargo test -p quorate-cli --features etcd-client --locked --test second_client
cargo test -p quorate-sim --features mutants --locked --test mutants --test storage_mutants
