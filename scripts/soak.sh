#!/usr/bin/env bash
# Pairs of faults on real servers, for as long as wanted, checked in every round. Each run continues
# with the cluster of the last one; the report of all runs is docs/soak.md.
#   scripts/soak.sh [--minutes N] [--seed N] [--directory DIR] [--network 5..90] [--new] [--debug]
# Two soaks at the same time need different directories and networks.
# Stops after the present round when interrupted. Needs root (network namespaces) and a C compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
export SOAK_MINUTES=10 SOAK_SEED=1 SOAK_DIRECTORY=$target/soak
export SOAK_RUNS=$PWD/docs/soak.jsonl SOAK_REPORT=$PWD/docs/soak.md
profile=(--release)
new=
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) SOAK_MINUTES=${2:?}; shift ;;
    --seed) SOAK_SEED=${2:?}; shift ;;
    --network) export SOAK_NETWORK=${2:?}; shift ;;
    --directory) SOAK_DIRECTORY=${2:?}; shift ;;
    --new) new=1 ;;
    --debug) profile=() ;;
    *) echo "soak.sh: unknown argument $1" >&2; sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ -z "$new" ] || rm -rf "$SOAK_DIRECTORY"
SOAK_DATE=$(date -u +%F)
SOAK_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
export SOAK_DATE SOAK_COMMIT
exec cargo test "${profile[@]}" --locked -p quorate-cli --test faults -- --ignored --exact soak::soak --nocapture
