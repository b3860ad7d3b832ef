#!/usr/bin/env bash
# Three etcds and three control plane servers on this machine, to see what is left when one of them goes.
#
#   three-servers.sh up           starts everything below ./three-servers and waits until it answers
#   three-servers.sh kill NAME    kills one, as the loss of its machine would: etcd-1 … etcd-3, server-1 … server-3
#   three-servers.sh down         ends the rest
#
# Needs etcd and karmada on the PATH. On machines of their own the parts are started with the same flags, addresses and
# certificates apart: see docs/operations/etcd.md.
set -euo pipefail

dir=three-servers
port=${THREE_SERVERS_PORT:-23790} # the first of six for etcd

start() { # NAME COMMAND…
    local name=$1
    shift
    "$@" >"$dir/$name.log" 2>&1 &
    echo $! >"$dir/$name.pid"
}

# A process that has ended counts as gone, also if nobody has asked for its end yet.
alive() { kill -0 "$1" 2>/dev/null && ! grep -qs '^State:.Z' "/proc/$1/status"; }

await() { # NAME COMMAND…: until the command succeeds, as long as NAME runs
    local name=$1
    shift
    until "$@" 2>/dev/null; do
        alive "$(cat "$dir/$name.pid")" || { tail -n 5 "$dir/$name.log"; exit 1; }
        sleep 0.1
    done
}

listens() { (: </dev/tcp/127.0.0.1/"$1"); }

up() {
    mkdir "$dir"
    local n peers=() clients=()
    for n in 1 2 3; do
        peers+=("etcd-$n=http://127.0.0.1:$((port + n + 2))")
        clients+=("http://127.0.0.1:$((port + n - 1))")
    done
    for n in 1 2 3; do
        start "etcd-$n" etcd --name "etcd-$n" --data-dir "$dir/etcd-$n" --log-level warn \
            --listen-client-urls "${clients[n - 1]}" --advertise-client-urls "${clients[n - 1]}" \
            --listen-peer-urls "${peers[n - 1]#*=}" --initial-advertise-peer-urls "${peers[n - 1]#*=}" \
            --initial-cluster "$(IFS=,; echo "${peers[*]}")" --initial-cluster-token three-servers
    done
    # etcd listens when it has a leader, not before.
    for n in 1 2 3; do await "etcd-$n" listens $((port + n - 1)); done
    for n in 1 2 3; do
        start "server-$n" karmada server --bind 127.0.0.1:0 --data-dir "$dir/server-$n" \
            --store etcd --etcd-servers "$(IFS=,; echo "${clients[*]}")"
    done
    for n in 1 2 3; do await "server-$n" grep -q ready "$dir/server-$n.log"; done
    echo "three servers on three etcds are ready: KUBECONFIG=$dir/server-1/karmada.kubeconfig"
}

stop() { # NAME SIGNAL
    local pid
    pid=$(cat "$dir/$1.pid")
    rm "$dir/$1.pid"
    kill "-$2" "$pid" 2>/dev/null || true
    while alive "$pid"; do sleep 0.1; done
}

down() {
    local name
    # The servers first: they end in order as long as etcd is there.
    for name in server-1 server-2 server-3 etcd-1 etcd-2 etcd-3; do
        if [ -e "$dir/$name.pid" ]; then stop "$name" TERM; fi
    done
}

case "${1:-} ${2:-}" in
"up ") up ;;
"kill etcd-"[123] | "kill server-"[123]) stop "$2" KILL ;;
"down ") down ;;
*)
    sed -n '2,/^$/p' "$0"
    exit 2
    ;;
esac
