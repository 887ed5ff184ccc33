#!/usr/bin/env bash
# A worker in a few lines of shell:  ./curl.sh http://127.0.0.1:8080 gpu [N]     (needs curl and jq; ends after N tasks)
# Each lease is asked for, kept and ended by single calls, without a session. While `work` runs, the lease is extended in time.
set -euo pipefail
url=$1 queue=$2 left=${3:--1} worker=curl-$HOSTNAME-$$-$(date +%s) number=0

ask() { # prints the answer; 1: the call is refused, 2: there was no answer for half a minute
  local pause said
  for pause in 0 1 2 4 8 16; do # the same call again
    sleep "$pause"
    said=$(curl -sS -w '\n%{http_code}' -H 'Content-Type: application/json' -d @- "$url/v1/$1" <<<"$2") || continue
    case ${said##*$'\n'} in 2??) echo "${said%$'\n'*}" && return ;; 408 | 429 | 5??) ;; *) echo "$said" >&2 && return 1 ;; esac
  done
  return 2
}
end() { ask "leases:$1" "{\"leases\": [{\"lease\": $token, $2}]}"; }
failed() { end fail "\"error\": {\"code\": \"$1\", \"description\": \"$2\"}"; }

work() { jq -c '{doubled: (2 * (.payload.n // 0))}' <<<"$1"; } # your work: a task on the way in, its result on the way out

while [ "$left" -ne 0 ]; do
  number=$((number + 1)) # with it, the same call again is the same request, and gets the same lease
  lease=$(ask "queues/$queue/leases" "{\"max\": 1, \"wait_ms\": 20000, \"worker\": \"$worker\", \"request_id\": \"$number\"}" | jq -c '.leases[0] // empty')
  [ -n "$lease" ] || continue
  left=$((left - 1)) token=$(jq .lease <<<"$lease") task=$(jq -c .task <<<"$lease") seconds=$(jq '.beat_every_ms / 1000' <<<"$lease")
  if [ "$token" = '""' ]; then # the task has ended with being handed over: there is nothing to keep or to report
    work "$task" || echo "exit: status $?" >&2
    continue
  fi
  while sleep "$seconds" && kill -0 $$ 2>/dev/null; do ask leases:extend "{\"leases\": [{\"lease\": $token}]}" >/dev/null; done &
  keeper=$!
  if result=$(work "$task"); then
    end complete "\"result\": $result" || [ $? -ne 1 ] || failed report_refused "The server refused the result" # without an answer, the lease runs out
  else
    failed exit "status $?"
  fi
  kill "$keeper" && wait "$keeper" 2>/dev/null || true
done
