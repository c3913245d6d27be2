#!/usr/bin/env bash
# Checks what deploy/ holds with the tools of those who will use it:
#   - the Debian package: built, listed, installed in a Debian made for it (or unpacked), its server run;
#   - the unit: systemd-analyze verify and security, on the installed files;
#   - the Kubernetes manifest: against the schemas of Kubernetes;
#   - the container file: built, and its image run. The compiler's image is replaced by one that holds
#     the finished binary, and the last stage begins with the Debian made for it.
# crates/server/tests/deploy.rs checks flags, metrics and alerts, without any of these tools.
#
#   scripts/deploy-check.sh [--install] [--binary PATH]
#
# --install installs missing tools (Debian packages; cargo-deb and kubernetes-validate below target/).
# --binary uses a finished binary instead of a release build. Each check that cannot run says so by name; the
# last line counts them. Installing in a Debian of its own and the container need root.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
install=false binary=
while [ $# -gt 0 ]; do
  case $1 in
    --install) install=true; shift ;;
    --binary) binary=$(realpath "${2:?"--binary needs a path"}"); shift 2 ;;
    *) echo "usage: scripts/deploy-check.sh [--install] [--binary PATH]" >&2; exit 2 ;;
  esac
done
tools=$target/deploy-tools
work=$(mktemp -d)
passed=() skipped=() server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
pass() { passed+=("$1"); echo "deploy: passed: $1"; }
skip() { skipped+=("$1"); echo "deploy: skipped: $1: $2"; }
fail() { echo "deploy: FAILED: $1" >&2; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }
has() { command -v "$1" >/dev/null; }
# need COMMAND PACKAGE…: whether the command is there, after it was installed where that is wanted.
need() {
  has "$1" || ! $install || apt-get install -y -qq --no-install-recommends "${@:2}" >/dev/null 2>&1 || true
  has "$1"
}
PATH=$PATH:/usr/sbin:/sbin

if [ -z "$binary" ]; then
  cargo build --release --locked -p quorate-cli
  binary=$target/release/quorate
fi
[ -x "$binary" ] || fail "there is no program $binary"

# Starts a server of the command, waits until it is healthy, writes and reads, and stops it.
# run_server COMMAND…: the command gets the variables of deploy/quorate.env with other ports.
run_server() {
  local client=23790 log=$work/server.log put
  "$@" >"$log" 2>&1 &
  server=$!
  for _ in $(seq 150); do
    if curl --silent --fail "http://127.0.0.1:$client/health" | grep -q '"health":"true"'; then break; fi
    kill -0 "$server" 2>/dev/null || { cat "$log" >&2; fail "the server ended: $*"; }
    sleep 0.2
  done
  put=$(curl --silent --fail -X POST "http://127.0.0.1:$client/v3/kv/put" -d '{"key":"Zm9v","value":"YmFy"}') ||
    { cat "$log" >&2; fail "a put failed: $*"; }
  grep -q revision <<<"$put" || fail "the reply to a put has no revision: $put"
  kill -TERM "$server"
  wait "$server" || { cat "$log" >&2; fail "the server did not end gracefully: $*"; }
  server=
}
variables() { # FILE DIRECTORY: the variables of the file with other ports and another data directory
  sed -n 's/^ETCD_/export ETCD_/p' "$1" | sed "s/:2379/:23790/g; s/:2380/:23800/g; s/:2381/:23810/g; s#=/var/lib/quorate/data#=$2#"
}

# --- A Debian to install into ---------------------------------------------------------------------
# The release of this machine, so that the binary's libraries are there.
debian=
if ! is_root; then
  why_no_debian="needs root"
elif ! need debootstrap debootstrap; then
  why_no_debian="debootstrap is not installed"
else
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
  mirror=$(sed -n 's/^deb \(\[[^]]*\] \)\?\(http[^ ]*debian\/\?\) .*/\2/p; s/^URIs: \(http[^ ]*debian\/\?\).*/\1/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1) || true
  if debootstrap --variant=minbase --include=adduser,binutils "$codename" "$work/debian" ${mirror:+"$mirror"} \
    >"$work/debootstrap.log" 2>&1; then
    debian=$work/debian
  else
    why_no_debian="debootstrap failed: $(tail -n 1 "$work/debootstrap.log")"
  fi
fi

# --- The container file ---------------------------------------------------------------------------
# Before the package is installed in the same Debian.
if [ -z "$debian" ]; then
  skip "container" "$why_no_debian"
elif ! need buildah buildah; then
  skip "container" "buildah is not installed"
else
  images() { buildah --root "$work/images" --runroot "$work/images-run" --storage-driver vfs "$@"; }
  # The compiler's image: `cargo build` hands out the finished binary.
  mkdir -p "$work/stage/usr/local/bin"
  cp "$binary" "$work/stage/usr/local/bin/finished-quorate"
  printf '#!/bin/sh\nmkdir -p target/release && cp /usr/local/bin/finished-quorate target/release/quorate\n' \
    >"$work/stage/usr/local/bin/cargo"
  chmod +x "$work/stage/usr/local/bin/cargo"
  base() { # IMAGE DIRECTORY…
    local container
    container=$(images from scratch)
    for directory in "${@:2}"; do images copy --quiet "$container" "$directory" / >/dev/null; done
    images commit --quiet "$container" "$1" >/dev/null
    images rm "$container" >/dev/null
  }
  mapfile -t bases < <(sed -n 's/^FROM \([^ ]*\).*/\1/p' deploy/Containerfile)
  [ "${#bases[@]}" -eq 2 ] || fail "deploy/Containerfile has ${#bases[@]} stages, and this script knows two"
  mkdir "$work/context"
  cp deploy/Containerfile "$work/context/"
  if ! { base "${bases[0]}" "$debian" "$work/stage" && base "${bases[1]}" "$debian"; } >"$work/images.log" 2>&1; then
    skip "container" "buildah cannot make images here: $(tail -n 1 "$work/images.log")"
  elif ! images bud --isolation chroot --pull-never --quiet -f deploy/Containerfile -t quorate "$work/context" \
    >"$work/images.log" 2>&1; then
    cat "$work/images.log" >&2
    fail "deploy/Containerfile"
  else
    images inspect --type image quorate >"$work/image.json"
    for part in '"/usr/local/bin/quorate"' '"User": "10001"' 2379/tcp ETCD_DATA_DIR=/var/lib/quorate/data; do
      grep -q -- "$part" "$work/image.json" || fail "the image lacks $part"
    done
    container=$(images from --pull-never quorate)
    images run --isolation chroot "$container" -- /usr/local/bin/etcd --version >"$work/version" 2>&1 ||
      { cat "$work/version" >&2; fail "the image does not run"; }
    grep -q '^etcd Version' "$work/version" || { cat "$work/version" >&2; fail "under the name etcd the image does not say etcd's version"; }
    images run --isolation chroot "$container" -- sh -c 'test "$(id -u)" = 10001 && touch /var/lib/quorate/writable' ||
      fail "the image's user cannot write to /var/lib/quorate"
    images rm "$container" >/dev/null
    pass "container: built with buildah, runs as user 10001"
    skip "container: compilation in the compiler's image" "this script builds outside of it"
  fi
fi

# --- The Debian package ---------------------------------------------------------------------------
export PATH=$PATH:$tools/bin
if ! has cargo-deb && $install; then
  cargo install --quiet --locked --debug --root "$tools" cargo-deb || true
fi
if ! has dpkg-deb; then
  skip "Debian package" "dpkg-deb is not installed"
elif ! has cargo-deb; then
  skip "Debian package" "cargo-deb is not installed: cargo install cargo-deb"
else
  mkdir -p "$work/deb/release"
  cp "$binary" "$work/deb/release/quorate"
  CARGO_TARGET_DIR=$work/deb cargo deb --quiet --no-build -p quorate-cli --output "$work/quorate.deb" >"$work/deb.log" 2>&1 ||
    { cat "$work/deb.log" >&2; fail "cargo deb"; }
  if grep -i warning "$work/deb.log" >&2; then fail "the Debian package has warnings"; fi
  dpkg-deb --contents "$work/quorate.deb" >"$work/contents"
  for file in usr/bin/quorate etc/quorate/quorate.env usr/share/quorate/alerts.yaml \
    usr/share/quorate/grafana.json quorate.service; do
    grep -q "$file\$" "$work/contents" || { cat "$work/contents"; fail "the Debian package lacks $file"; }
  done
  for field in Package Version Architecture Maintainer Description Depends; do
    dpkg-deb --field "$work/quorate.deb" "$field" 2>&1 | grep -q . || fail "the Debian package has no field $field"
  done
  pass "Debian package: built ($(stat -c %s "$work/quorate.deb") bytes)"
  root=$work/unpacked
  dpkg-deb --extract "$work/quorate.deb" "$root"
  (eval "$(variables "$root/etc/quorate/quorate.env" "$work/data-unpacked")"; run_server "$root/usr/bin/quorate" server)
  pass "Debian package: unpacked, its server serves a put and ends gracefully"
  if [ -z "$debian" ]; then
    skip "Debian package: installation" "$why_no_debian"
  else
    cp "$work/quorate.deb" "$debian/root/"
    chroot "$debian" sh -c 'DEBIAN_FRONTEND=noninteractive dpkg --install /root/quorate.deb' >"$work/dpkg.log" 2>&1 ||
      { cat "$work/dpkg.log" >&2; fail "dpkg --install"; }
    chroot "$debian" id quorate >/dev/null || fail "the package did not make the user quorate"
    chroot "$debian" install -d -o quorate -g quorate -m 0700 /var/lib/quorate
    (eval "$(variables "$debian/etc/quorate/quorate.env" /var/lib/quorate/data)"
      run_server chroot --userspec=quorate:quorate "$debian" /usr/bin/quorate server)
    chroot "$debian" sh -c 'dpkg --remove quorate && test -e /etc/quorate/quorate.env && test ! -e /usr/bin/quorate' \
      >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "dpkg --remove"; }
    pass "Debian package: installed in a Debian, runs as the user quorate, is removed and keeps its settings"
  fi
fi

# --- The unit -------------------------------------------------------------------------------------
if ! has systemd-analyze; then
  skip "systemd unit" "systemd-analyze is not installed"
else
  mkdir -p "$work/unit"
  sed "s#^ExecStart=/usr/bin/quorate#ExecStart=$binary#" deploy/quorate.service >"$work/unit/quorate.service"
  systemd-analyze verify --man=no "$work/unit/quorate.service" >"$work/unit.log" 2>&1 || true
  if grep -F quorate.service "$work/unit.log"; then fail "systemd-analyze verify"; fi
  pass "systemd unit: verify"
  # 0 is the most restricted.
  if systemd-analyze security --help 2>&1 | grep -q -- --offline &&
    systemd-analyze security --no-pager --offline=true --threshold=25 "$work/unit/quorate.service" >"$work/unit.log" 2>&1; then
    pass "systemd unit: security ($(tail -n 1 "$work/unit.log" | sed 's/.*: //'))"
  else
    cat "$work/unit.log" >&2
    fail "systemd-analyze security: more exposed than 2.5 of 10"
  fi
fi

# --- The Kubernetes manifest ----------------------------------------------------------------------
validate=$(command -v kubernetes-validate || echo "$tools/python/bin/kubernetes-validate")
if [ ! -x "$validate" ] && $install && has python3; then
  { python3 -m venv "$tools/python" && "$tools/python/bin/pip" install --quiet kubernetes-validate; } >/dev/null 2>&1 || true
fi
if [ ! -x "$validate" ]; then
  skip "Kubernetes manifest" "kubernetes-validate is not installed: pip install kubernetes-validate"
else
  "$validate" --strict deploy/kubernetes/quorate.yaml >"$work/kubernetes.log" 2>&1 ||
    { cat "$work/kubernetes.log" >&2; fail "deploy/kubernetes/quorate.yaml"; }
  # The check can fail: an unknown field is found.
  sed 's/podManagementPolicy/podManagementPolicies/' deploy/kubernetes/quorate.yaml >"$work/wrong.yaml"
  if "$validate" --strict "$work/wrong.yaml" >/dev/null 2>&1; then fail "a wrong manifest is accepted"; fi
  pass "Kubernetes manifest: valid, $("$validate" --version 2>/dev/null | head -n 1)"
fi

echo "deploy: ${#passed[@]} passed, ${#skipped[@]} skipped"
