#!/usr/bin/env bash
# The release profile: builds the binaries as a release does, runs the first commands of the README with them,
# and 300 simulated worlds. The gate does the same with the binaries of the tests, which it has built anyway.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked -p quorate-cli -p quorate-sim
cargo run --quiet --release --locked -p quorate-cli -- demo --once | tail -n 6
cargo run --quiet --release --locked -p quorate-sim -- scenario --show crates/core/tests/scenarios/joint_replace_member.txt | tail -n 5
cargo run --quiet --release --locked -p quorate-sim -- explore --seeds 300 --no-shrink
