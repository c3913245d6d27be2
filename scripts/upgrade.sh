#!/usr/bin/env bash
# Upgrades, downgrades and mixes two programs under load (crates/cli/tests/upgrade.rs): the one of
# this build, and one with a made-up command of the next cluster version. `test.sh` has the same test;
# this runs it alone, and builds only what it needs. Arguments are flags of cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
# As a part of the test and in the same directory, so that all dependencies are built once, with
# the features that the test needs.
cargo test --locked -p quorate-cli "$@" --features quorate-cli/next-version-for-tests --test upgrade --no-run
cp "$target/debug/quorate" "$target/debug/quorate-next"
QUORATE_NEXT="$target/debug/quorate-next" cargo test --locked -p quorate-cli "$@" --test upgrade -- --nocapture
