#!/usr/bin/env bash
# Checks dependencies for known vulnerabilities, licenses and sources (deny.toml).
# Needs cargo-deny, and network access for the advisory database.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo deny --version >/dev/null 2>&1; then
  echo "deny: cargo-deny is not installed; run: cargo install --locked cargo-deny"
  exit 2
fi
cargo deny --locked check "$@"
