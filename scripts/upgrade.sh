#!/usr/bin/env bash
# Upgrades, downgrades and mixes two programs under load (crates/cli/tests/upgrade.rs): the one of
# this build, and one with a made-up command of the next cluster version.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --locked -p quorate-cli --features next-version-for-tests --target-dir "$target/next"
QUORATE_NEXT="$target/next/debug/quorate" \
  cargo test --locked -p quorate-cli --test upgrade -- --nocapture
