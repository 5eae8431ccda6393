# Sourced by the scripts beside it, from the repository's root: finds a Python, makes virtual environments.

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The first Python of 3.11 or newer that can make a virtual environment.
find_python() {
  local name
  for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3.14 python3; do
    if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  fail "no Python 3.11 or newer with the modules venv and ensurepip was found (on Debian: python3 and python3-venv)"
}

# venv DIR EXTRAS [OPTION...]: DIR has this project, in place, with EXTRAS ("build,dev" or ""), installed with these
# options of pip. Does nothing when it already has, that is when the stamp in DIR carries the digest of pyproject.toml
# and of the interpreter.
venv() {
  local dir=$1 extras=$2 stamp python digest
  shift 2
  stamp="$dir/installed-${extras:-base}"
  if [ ! -x "$dir/bin/python" ] || ! "$dir/bin/python" -c '' 2>/dev/null; then
    python=$(find_python)
    say "making $dir with $python"
    rm -rf "$dir"
    "$python" -m venv "$dir"
  fi
  digest=$({ "$dir/bin/python" -c 'import sys; print(sys.version, sys.prefix)'; cat pyproject.toml; } | sha256sum)
  if [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then
    return
  fi
  say "installing ${extras:-the runner alone} into $dir (a few minutes the first time)"
  "$dir/bin/python" -m pip install --quiet --no-input --disable-pip-version-check "$@" -e ".${extras:+[$extras]}" \
    </dev/null ||
    fail "the packages could not be installed; see pip's message above"
  printf '%s\n' "$digest" >"$stamp"
}
