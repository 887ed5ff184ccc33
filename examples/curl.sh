#!/usr/bin/env bash
# A worker in ten lines of shell:  ./curl.sh http://127.0.0.1:8080 gpu [N]     (needs curl and jq; ends after N tasks)
# Each lease is asked for, kept and ended by single calls, without a session. While `work` runs, the lease is extended in time.
set -euo pipefail
url=$1 queue=$2 left=${3:--1} worker=curl-$HOSTNAME-$$-$(date +%s) number=0
ask() { curl -sS --fail-with-body --retry 5 --retry-all-errors -H 'Content-Type: application/json' -d "$2" "$url/v1/$1"; }

work() { jq -c '{doubled: (2 * (.payload.n // 0))}' <<<"$1"; } # your work: a task on the way in, its result on the way out

while [ "$left" -ne 0 ]; do
  number=$((number + 1)) # the same call again, as `--retry` sends it, is the same request, and gets the same lease
  lease=$(ask "queues/$queue/leases" "{\"max\": 1, \"wait_ms\": 20000, \"worker\": \"$worker\", \"request_id\": \"$number\"}" | jq -c '.leases[0] // empty')
  [ -n "$lease" ] || continue
  token=$(jq .lease <<<"$lease") seconds=$(jq '.beat_every_ms / 1000' <<<"$lease")
  while sleep "$seconds" && kill -0 $$ 2>/dev/null; do ask leases:extend "{\"leases\": [{\"lease\": $token}]}" >/dev/null; done &
  keeper=$!
  if result=$(work "$(jq -c .task <<<"$lease")"); then
    ask leases:complete "{\"leases\": [{\"lease\": $token, \"result\": $result}]}"
  else
    ask leases:fail "{\"leases\": [{\"lease\": $token, \"error\": {\"code\": \"exit\", \"description\": \"status $?\"}}]}"
  fi
  kill "$keeper" && wait "$keeper" 2>/dev/null || true
  left=$((left - 1)) && echo
done
