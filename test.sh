#!/usr/bin/env bash
# All tests: the workspace with all features, then upgrades with two programs, then a short hunt for
# mutants, which shows that the checkers notice wrong rules. Needs Rust (stable) and a C compiler, nothing else.
set -euo pipefail
cd "$(dirname "$0")"
features=quorate-core/serde,quorate/serde,quorate/typed,quorate-cli/etcd-client
# The build script of the crate `etcd-client`, our second client, calls protoc. An example of ours
# implements as much of it as is needed.
cargo build --workspace --locked --features "$features" --example protoc
PROTOC="${PROTOC:-${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/protoc}" \
  cargo test --workspace --locked --features "$features"
PROTOC="${PROTOC:-${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/protoc}" \
  scripts/upgrade.sh --workspace --features "$features"
cargo run --quiet --locked -p quorate-sim -- mutants --short
