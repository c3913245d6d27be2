#!/usr/bin/env bash
# Runs the tests of the concurrent structures under Miri, which finds data races and undefined
# behaviour in what they use. Not part of `cargo test`: Miri needs a nightly toolchain.
# Usage: scripts/miri.sh [test name]
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri.sh: Miri is not installed." >&2
    echo "miri.sh: run 'rustup toolchain install nightly --component miri', then try again." >&2
    exit 2
fi
# Miri has no sockets and no files here: only the structures that need neither.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-many-seeds=0..8}"
exec cargo +nightly miri test -p quorate --lib -- runtime::concurrency_tests "$@"
