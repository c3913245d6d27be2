#!/usr/bin/env bash
# Runs the concurrent structures of the runtime under loom: all interleavings of small tests.
# Not part of `cargo test`: loom has to be downloaded. Usage: scripts/loom.sh [test name]
set -euo pipefail
cd "$(dirname "$0")/../crates/node/loom"
if ! cargo fetch --quiet 2>/dev/null; then
    echo "loom.sh: the crate loom is not available: cargo cannot download it." >&2
    echo "loom.sh: run 'cargo fetch' in crates/node/loom where there is a network, then try again." >&2
    exit 2
fi
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}"
exec env RUSTFLAGS="--cfg loom" cargo test --release --offline -- "$@"
