#!/bin/sh
# Entrypoint of the image: runs `loadchaos` with the given arguments. If Locust's operator calls it like Locust (--master,
# --worker or the LOCUST_ variables), the options are translated. Then LOADCHAOS_ARGS has the profile and the other options of
# the run, e.g. "/profile/profile.yaml --target http://vllm:8000".
set -eu

mode= host=${LOCUST_MASTER_NODE_HOST:-} port=${LOCUST_MASTER_NODE_PORT:-5557} bind=${LOCUST_MASTER_BIND_PORT:-5557}
workers=${LOCUST_EXPECT_WORKERS:-1}
case ${LOCUST_MODE_MASTER:-} in 1 | true | True) mode=master ;; esac
case ${LOCUST_MODE_WORKER:-} in 1 | true | True) mode=worker ;; esac

case ${1:-} in
-*) ;;
*) [ -n "$mode" ] && [ $# -eq 0 ] || exec loadchaos "$@" ;;
esac

original=$*
while [ $# -gt 0 ]; do
    case $1 in
    --master) mode=master ;;
    --worker) mode=worker ;;
    --master-host=* | --master-port=* | --expect-workers=* | --master-bind-port=*)
        set -- "${1%%=*}" "${1#*=}" "$@"
        shift_one=1
        ;;
    esac
    case $1 in
    --master-host) host=$2 ; shift ;;
    --master-port) port=$2 ; shift ;;
    --master-bind-port) bind=$2 ; shift ;;
    --expect-workers) workers=$2 ; shift ;;
    esac
    if [ -n "${shift_one:-}" ]; then shift; shift_one=; fi
    shift
done

case $mode in
worker) exec loadchaos worker --master-host "$host" --master-port "$port" ;;
master)
    # shellcheck disable=SC2086  # LOADCHAOS_ARGS is a command line
    exec loadchaos run ${LOADCHAOS_ARGS:?must name the profile and the target} --master --expect-workers "$workers" \
        --master-bind-port "$bind" ;;
# shellcheck disable=SC2086
*) exec loadchaos $original ;;
esac
