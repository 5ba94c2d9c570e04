#!/bin/sh
# Gets the programs that tests/services needs into .cache/bin: spanfold's collector, Jaeger, and the checker of docker-compose.yml.
#
# A program that is on PATH is taken as it is. The others are built from the Go module proxy, at the versions that the go.mod
# of their folder here pins and go.sum proves. What is there is not built again until a file of its folder changes.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.cache/bin
# All that Go needs and leaves behind stays in this checkout, and can be removed with rm.
export GOMODCACHE="$PWD/.cache/go/mod" GOCACHE="$PWD/.cache/go/build" GOFLAGS="-trimpath -modcacherw -buildvcs=false" CGO_ENABLED=0
mkdir -p "$bin"

# Built beside its place and moved there, so that what is in .cache/bin is always whole.
build() (cd "$folder" && go build -ldflags "-s -w" -o "$bin/.$name" "$package") 2>"$bin/.$name.log"

# get NAME FOLDER PACKAGE [OTHER_NAME]: NAME is what .cache/bin calls it, OTHER_NAME another it may have on PATH.
get() {
  name=$1 folder=collector/$2 package=$3
  # A program found on PATH counts only for as long as it is there, which is what -e says of a link.
  if [ -e "$bin/$name" ] && { [ -L "$bin/$name" ] || [ -z "$(find "$folder" -type f -newer "$bin/$name")" ]; }; then
    return
  fi
  for candidate in "$name" "${4:-$name}"; do
    if found=$(command -v "$candidate"); then
      ln -sf "$found" "$bin/$name"
      echo "$name: $found"
      return
    fi
  done
  command -v go >/dev/null || {
    echo "$name is not on PATH, and building it needs Go $(sed -n 's/^go //p' "$folder/go.mod") or newer, which is not there either." >&2
    exit 1
  }
  echo "$name: building, which takes minutes the first time"
  start=$(date +%s)
  # A download that breaks off once is no reason to fail: what was done is kept, and the second try goes on there.
  build || { sleep 10 && build; } || {
    grep -v '^go: downloading ' "$bin/.$name.log" >&2
    exit 1
  }
  mv "$bin/.$name" "$bin/$name"
  rm "$bin/.$name.log"
  built=yes
  echo "$name: built in $(($(date +%s) - start)) s, $(($(wc -c <"$bin/$name") / 1000000)) MB"
}

built=
get compose-spec compose github.com/compose-spec/compose-go/v2/cmd
get spanfold-collector distribution . otelcol-contrib
get jaeger jaeger github.com/jaegertracing/jaeger/cmd/jaeger
# 5 GB that nobody needs any more. They stay when a build was interrupted, which then goes on where it was.
[ -z "$built" ] || rm -rf .cache/go
