#!/usr/bin/env bash
# Submit one of the jobs in jobs/ with this project's jars and Spark settings.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<USAGE
Usage: ./spark-submit.sh JOB [arguments of the job…]

Jobs:
$(for job in "$here"/jobs/*.py; do [ -e "$job" ] && printf '  %s\n' "$(basename "$job" .py)"; done)

Environment:
  SCYLLASPARK_SUBMIT_ARGS   further spark-submit options, e.g. "--master yarn --deploy-mode client"
  SPARK_HOME                the Spark to use when this checkout has no .venv
  SCYLLASPARK_JARS_DIR      where the jar cache is, if not in ~/.cache/scylla-spark/jars
  SCYLLASPARK_ARCHIVE       archive for executors, as 'scylla-spark package' makes it; default: made when the master is a cluster;
                            "none": executors have everything installed
  SCYLLASPARK_IMAGE_HOME    with --deploy-mode cluster on Kubernetes: folder of the image with jobs/, conf/ and jars/;
                            default: /opt/scylla-spark

Examples:
  ./spark-submit.sh ingest --config scyllaspark.toml
  SCYLLASPARK_SUBMIT_ARGS="--master spark://head:7077" ./spark-submit.sh dispatch

Settings come from conf/spark-defaults.conf and scyllaspark.toml; jars from the cache that 'make setup' fills.
USAGE
}

job=${1:-}
if [ -z "$job" ] || [ "$job" = -h ] || [ "$job" = --help ]; then
  usage
  [ -n "$job" ] && exit 0 || exit 2
fi
shift

script="$here/jobs/$job.py"
if [ ! -f "$script" ]; then
  echo "error: there is no job '$job' (jobs/$job.py)" >&2
  usage >&2
  exit 2
fi

if [ -x "$here/.venv/bin/spark-submit" ]; then
  submit=$here/.venv/bin/spark-submit
  python=$here/.venv/bin/python
elif [ -n "${SPARK_HOME:-}" ] && [ -x "$SPARK_HOME/bin/spark-submit" ]; then
  submit=$SPARK_HOME/bin/spark-submit
  python=${PYSPARK_PYTHON:-python3}
elif command -v spark-submit >/dev/null; then
  submit=$(command -v spark-submit)
  python=${PYSPARK_PYTHON:-python3}
else
  echo "error: no spark-submit: run 'make setup' here, or set SPARK_HOME" >&2
  exit 7
fi

args=${SCYLLASPARK_SUBMIT_ARGS:-}
cluster=
[[ "$args" =~ (--deploy-mode|spark\.submit\.deployMode)[=\ ]+cluster ]] && cluster=yarn
if [ -n "$cluster" ] && [[ "$args" =~ (--master|spark\.master)[=\ ]+spark: ]]; then
  echo "error: a standalone master starts no Python driver on the cluster: leave out --deploy-mode cluster" >&2
  exit 7
fi
if [ -n "$cluster" ] && [[ ! "$job" =~ ^(ingest|dispatch)$ ]]; then
  echo "error: $job has no Spark session, so no cluster keeps its driver: leave out --deploy-mode cluster" >&2
  exit 7
fi
[ -n "$cluster" ] && [[ "$args" =~ (--master|spark\.master)[=\ ]+k8s: ]] && cluster=kubernetes

# The driver has this Python; on a cluster it is one of another machine, so it has a name and no path, and need not have Spark here.
theirs=$python
if [ -n "$cluster" ]; then
  theirs=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  export SPARK_HOME=${SPARK_HOME:-$("$python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}
fi
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$theirs}
export PYSPARK_DRIVER_PYTHON=${PYSPARK_DRIVER_PYTHON:-$theirs}
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

# The JVM's file names are UTF-8, as Python's are. With a local master Spark need not resolve the name of this host.
export LC_ALL=C.UTF-8
if [[ ! "$args" =~ (--master|spark\.master)[=\ ]+[^l\ ] ]]; then
  export SPARK_LOCAL_HOSTNAME=${SPARK_LOCAL_HOSTNAME:-localhost}
fi

# Fetched on first use; afterwards this only checks the hashes and needs no network.
jars=$("$python" -m scylla_spark.io.host.prepare --spark-jars "$@")

# Executors of a cluster get this package, the handlers and their libraries, unless the options say how else they come there.
# A driver that is on the cluster, too, gets the libraries of this package as well.
ship=()
if [[ "$job" =~ ^(ingest|dispatch)$ ]] && [ "$cluster" != kubernetes ] &&
   [[ "$args" =~ (--master|spark\.master)[=\ ]+(local-cluster|[^l\ ]) ]] &&
   [[ ! "$args" =~ --archives|--py-files|spark\.archives|spark\.yarn\.dist\.archives|spark\.submit\.pyFiles ]] &&
   [ "${SCYLLASPARK_ARCHIVE:-}" != none ]; then
  archive=${SCYLLASPARK_ARCHIVE:-$("$python" -m scylla_spark.executors.spark.archive ${cluster:+--driver} "$job" "$@")}
  ship=(--archives "$archive#scylla-spark-env" --conf spark.executorEnv.PYTHONPATH=scylla-spark-env)
fi

logging=file:$here/conf/log4j2.properties
if [ -n "$cluster" ]; then
  if [ "$cluster" = yarn ]; then
    # The settings and what configures the log go with the application, into the folder that its driver starts in.
    logging=log4j2.properties
    files=$here/conf/log4j2.properties
    given=()
    for word in "$@"; do
      case $word in
        --config=* | --handlers=*) given+=("${word%%=*}" "${word#*=}") ;;
        *) given+=("$word") ;;
      esac
    done
    option='' settings='' words=()
    for word in ${given[@]+"${given[@]}"}; do
      shipped=$word
      if [ "$option" = --config ]; then
        settings=$word shipped=$(basename "$word")
      elif [ "$option" = --handlers ] && [ -f "$word" ]; then
        shipped=scylla-spark-env/$(basename "$word")
      fi
      words+=("$shipped")
      option=$word
    done
    [ -z "$settings" ] && [ -f scyllaspark.toml ] && settings=scyllaspark.toml
    set -- ${words[@]+"${words[@]}"}
    unset PYTHONPATH  # what stands there is not on the cluster
    ship+=(--files "$files${settings:+,$settings}" --conf spark.yarn.appMasterEnv.PYTHONPATH=scylla-spark-env)
  else
    home=${SCYLLASPARK_IMAGE_HOME:-/opt/scylla-spark}
    logging=file:$home/conf/log4j2.properties
    script=local://$home/jobs/$job.py
    jars=$(printf %s "$jars" | sed "s#[^,]*/#local://$home/jars/#g")
  fi
fi
command=(
  "$submit"
  --properties-file "$here/conf/spark-defaults.conf"
  --driver-java-options "-Xss16m -Dlog4j2.configurationFile=$logging"
  --jars "$jars"
  ${ship[@]+"${ship[@]}"}
)

# A driver on the cluster ends with its own exit code, which the client of Spark only mentions. A signal ends this client and not
# the application: what stops its container with SIGTERM lets it drain.
if [ -n "$cluster" ]; then
  told=$(mktemp -d)
  trap 'rm -rf "$told"' EXIT
  mkfifo "$told/pipe"
  tee "$told/log" <"$told/pipe" >&2 &
  tee=$!
  # shellcheck disable=SC2086 # the extra options are meant to be split
  "${command[@]}" $args "$script" "$@" 2>"$told/pipe" &
  client=$!
  trap 'kill -TERM "$client" 2>/dev/null || true' INT TERM HUP
  code=0
  wait "$client" || code=$?
  wait "$tee" || true  # what the client has said last may still be in the pipe
  if [ "$code" -ne 0 ]; then
    status=$(grep -oE 'User application exited with status [0-9]+|exit code: [0-9]+' "$told/log" | grep -oE '[0-9]+$' | tail -n 1) || true
    code=${status:-$code}
  fi
  exit "$code"
fi

# Drain on Ctrl-C and SIGTERM; a second one ends everything at once. Spark's JVM would stop everything at the first, so it is told
# to ignore both (a JVM leaves signals alone that are ignored when it starts). It gets a process group with the Python driver, its
# child, and we pass the first signal on once the driver listens: the driver drains and ends, and Spark ends after it.
listening=$(mktemp -d)/listening
export SCYLLASPARK_LISTENING=$listening
set -m
(
  trap '' INT TERM
  # shellcheck disable=SC2086 # the extra options are meant to be split
  exec "${command[@]}" $args "$script" "$@"
) &
spark=$!
set +m
stopping=
ask() {
  if [ -z "$stopping" ]; then
    stopping=$SECONDS
  elif [ $((SECONDS - stopping)) -ge 2 ]; then  # what comes sooner is the same request
    echo "error: ended by a second signal before everything was drained; the next start goes on." >&2
    kill -KILL -- "-$spark" 2>/dev/null || true
    exit 130
  fi
}
trap ask INT TERM HUP
trap 'rm -rf "${listening%/*}"' EXIT
code=0
wait "$spark" || code=$?
if [ -n "$stopping" ]; then
  # a driver that is just starting does not listen yet
  while [ ! -e "$listening" ] && kill -0 "$spark" 2>/dev/null; do sleep 0.2; done
  kill -TERM -- "-$spark" 2>/dev/null || true
  while
    code=0
    wait "$spark" || code=$?
    kill -0 "$spark" 2>/dev/null  # a further signal ends `wait`
  do :; done
fi
if [ "$code" -gt 128 ]; then
  echo "error: Spark's JVM has ended (signal $((code - 128))). Start this again; nothing is lost. If memory was short, the kernel's log says so: dmesg." >&2
  code=5
fi
exit "$code"
