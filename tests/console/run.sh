#!/usr/bin/env bash
# Plays the console in a headless Chromium: the replacement of a leader, cancelling, the keyboard alone,
# and axe-core. Needs Debian's `chromium`, Node.js and npm; it installs what is missing if it can, and
# says so and ends with success if it cannot. Screenshots go to SHOTS (a temporary directory).
#   tests/console/run.sh [PATH OF THE BINARY quorate]
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "console: skipped: $*"; exit 0; }
quorate=${1:-${CARGO_TARGET_DIR:-$PWD/target}/debug/quorate}
[ -x "$quorate" ] || skip "there is no $quorate: build it with cargo build -p quorate-cli"
command -v node >/dev/null && command -v npm >/dev/null || skip "Node.js and npm are not installed"
if ! command -v chromium >/dev/null; then
  { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || skip "chromium cannot be installed"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
modules=${CONSOLE_MODULES:-$work/modules}
if [ ! -d "$modules/node_modules/playwright-core" ]; then
  mkdir -p "$modules"
  cp tests/console/package.json tests/console/package-lock.json "$modules/"
  (cd "$modules" && npm ci --ignore-scripts --no-audit --no-fund) >"$work/npm.log" 2>&1 ||
    skip "the npm packages cannot be installed: $(tail -n 1 "$work/npm.log")"
fi
export NODE_PATH="$modules/node_modules" QUORATE="$quorate" WORK="$work" SHOTS="${SHOTS:-$work/shots}"
mkdir -p "$SHOTS"
timeout 300 node tests/console/play.cjs
