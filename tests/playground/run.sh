#!/usr/bin/env bash
# The playground page in a browser: each preset is stuck without its condition and live with it,
# rewinding shows what was there, links restore the state, and an exported story passes in
# quorate-sim. Also: the program in the page does what the one of this tree does.
#   tests/playground/run.sh [FOLDER]     with the programs in FOLDER; without it, they are built
#
# Needs node. Installs playwright-core with npm, and chromium with apt where it can; without them
# it says so and skips. Screenshots are written to the folder in $SCREENSHOTS, if it is set.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/tests/playground
target=${CARGO_TARGET_DIR:-$PWD/target}
skip() { echo "skipped: $*"; exit 0; }

command -v node >/dev/null || skip "node is not installed"
programs=${1:-$target/debug}
[ $# -gt 0 ] || cargo build --quiet --locked -p quorate-playground -p quorate-sim --bins
for program in quorate-playground quorate-sim; do
  [ -x "$programs/$program" ] || { echo "there is no $programs/$program" >&2; exit 2; }
done
node "$here/same_as_native.mjs" "$programs/quorate-playground"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$chromium" ]; then
  { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || true
  chromium=$(command -v chromium || true)
fi
[ -n "$chromium" ] || skip "chromium is not installed"
if [ -d "${CONSOLE_MODULES:-}/node_modules/playwright-core" ]; then
  ln -s "$CONSOLE_MODULES/node_modules" "$work/node_modules"
else
  (cd "$work" && npm install --silent --no-audit --no-fund playwright-core@1 >/dev/null 2>&1) \
    || skip "npm cannot install playwright-core"
fi
cp "$here/page.mjs" "$work/"
node "$work/page.mjs" "$chromium" crates/server/playground "$programs/quorate-sim" "${SCREENSHOTS:-}"
