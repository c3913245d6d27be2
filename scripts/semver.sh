#!/usr/bin/env bash
# Compares the public API of each published crate with a baseline and fails when a change
# needs a larger version number. The baseline is a git revision: scripts/semver.sh [REV],
# by default the newest tag.
# Needs cargo-semver-checks.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo semver-checks --version >/dev/null 2>&1; then
  echo "semver: cargo-semver-checks is not installed; run: cargo install --locked cargo-semver-checks"
  exit 2
fi
baseline=${1:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
if [ -z "$baseline" ]; then
  echo "semver: there is no tag yet; name a revision: scripts/semver.sh REV"
  exit 2
fi
for package in quorate-core quorate-storage quorate quorate-kv quorate-proto; do
  cargo semver-checks --package "$package" --baseline-rev "$baseline"
done
