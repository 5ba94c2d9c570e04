#!/bin/sh
# Secrets for the profiles of docker-compose.yml: random ones into .env, which docker compose reads and git ignores.
#
#   sh collector/secrets.sh          adds those that .env lacks, and changes none
#   sh collector/secrets.sh check    says which are missing; what docker compose runs first
set -eu
names="CLICKHOUSE_PASSWORD GRAFANA_PASSWORD POSTGRES_PASSWORD REDIS_PASSWORD MINIO_PASSWORD LANGFUSE_SALT LANGFUSE_ENCRYPTION_KEY LANGFUSE_NEXTAUTH_SECRET"

if [ "${1:-}" = check ]; then
  missing=
  for name in $names; do
    value=$(printenv "$name" || true)
    [ "${#value}" -ge 16 ] || missing="$missing $name"
  done
  [ -z "$missing" ] || {
    echo "Missing, or shorter than 16 characters:$missing. 'sh collector/secrets.sh' writes random ones to .env." >&2
    exit 1
  }
  exit
fi

cd "$(dirname "$0")/.."
umask 077
touch .env
for name in $names; do
  grep -q "^$name=" .env || {
    # 32 bytes as 64 hex digits: the form that Langfuse wants for its key, and safe inside of an address.
    printf '%s=%s\n' "$name" "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >>.env
    echo "$name: written to .env"
  }
done
