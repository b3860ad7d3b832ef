#!/usr/bin/env bash
# Records what a stock kube-apiserver says about itself: discovery, OpenAPI, bootstrap objects.
# Usage: record.sh BIN_DIR OUT_DIR   (BIN_DIR holds kube-apiserver 1.36.3 and etcd; needs curl, jq, openssl, zstd)
set -euo pipefail
bin=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
port=${PORT:-26444} etcd_port=${ETCD_PORT:-23791} peer_port=${PEER_PORT:-23801}
server=https://127.0.0.1:$port
mkdir -p "$out"

openssl genrsa -out "$work/sa.key" 2048 2>/dev/null
echo 'recorder,recorder,recorder,system:masters' >"$work/tokens.csv"
"$bin/etcd" --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$etcd_port" \
  --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls "http://127.0.0.1:$peer_port" \
  >"$work/etcd.log" 2>&1 &
etcd=$!
"$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" --bind-address 127.0.0.1 --secure-port "$port" \
  --cert-dir "$work/certs" --service-account-key-file "$work/sa.key" --service-account-signing-key-file "$work/sa.key" \
  --service-account-issuer https://kubernetes.default.svc --token-auth-file "$work/tokens.csv" \
  --authorization-mode RBAC --service-cluster-ip-range 10.0.0.0/24 >"$work/api.log" 2>&1 &
api=$!
# Nothing is worth a graceful end here, and the server would wait long for its store.
trap 'kill -9 $api $etcd 2>/dev/null; wait 2>/dev/null || true; rm -rf "$work"' EXIT

get() { curl -sfk -H 'Authorization: Bearer recorder' "$@"; }
for _ in $(seq 60); do
  [ "$(get "$server/readyz" || true)" = ok ] && break
  sleep 1
done
# The OpenAPI documents of the aggregated groups appear a moment after readiness.
sleep 3

pack() { zstd -q -19 --ultra -f -o "$out/$1.zst"; }

# Discovery: the aggregated documents, and from the legacy ones the hash of the storage version.
aggregated='Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList'
get -H "$aggregated" "$server/api" >"$work/core.json"
get -H "$aggregated" "$server/apis" >"$work/apis.json"
for gv in $(jq -r '.items[] | .metadata.name as $g | .versions[] | "apis/\($g)/\(.version)"' "$work/apis.json") api/v1; do
  get "$server/$gv" | jq -c '.groupVersion as $gv | .resources[] | select(.storageVersionHash) | {key: "\($gv)/\(.name)", value: .storageVersionHash}'
done | jq -sc from_entries >"$work/hashes.json"
jq -c -n --slurpfile core "$work/core.json" --slurpfile apis "$work/apis.json" --slurpfile hashes "$work/hashes.json" \
  '{groups: ([$core[0].items[0]] + $apis[0].items), storageVersionHashes: $hashes[0]}' | pack discovery.json

# OpenAPI, compact as the server sends it.
get "$server/openapi/v2" >"$work/openapi-v2.json"
pack openapi-v2.json <"$work/openapi-v2.json"
mkdir -p "$out/openapi-v3" "$work/v3"
rm -f "$out"/openapi-v3/*.zst
for path in $(get "$server/openapi/v3" | jq -r '.paths | keys[]'); do
  name=${path//\//__}.json
  get "$server/openapi/v3/$path" >"$work/v3/$name"
  pack "openapi-v3/$name" <"$work/v3/$name"
done

documents=$here/../src/openapi/documents.rs
mkdir -p "$(dirname "$documents")"
{
  echo '//! The recorded documents of `/openapi/v3`, by path. Written by `gen/record.sh`.'
  echo
  echo 'pub(super) static DOCUMENTS: &[(&str, &[u8])] = &['
  for path in $(get "$server/openapi/v3" | jq -r '.paths | keys[]'); do
    echo "    (\"$path\", include_bytes!(\"../../data/openapi-v3/${path//\//__}.json.zst\")),"
  done
  echo '];'
} >"$documents"

# Bootstrap objects without what differs from server to server.
clean='[.items[] | del(.metadata.uid, .metadata.resourceVersion, .metadata.creationTimestamp, .metadata.managedFields, .metadata.generation)]'
rbac=$server/apis/rbac.authorization.k8s.io/v1
flow=$server/apis/flowcontrol.apiserver.k8s.io/v1
{
  for entry in clusterRoles=$rbac/clusterroles clusterRoleBindings=$rbac/clusterrolebindings roles=$rbac/roles \
    roleBindings=$rbac/rolebindings priorityClasses=$server/apis/scheduling.k8s.io/v1/priorityclasses \
    flowSchemas=$flow/flowschemas priorityLevelConfigurations=$flow/prioritylevelconfigurations; do
    get "${entry#*=}" | jq -c "{key: \"${entry%%=*}\", value: $clean}"
  done
} | jq -sc from_entries | pack bootstrap.json

# The table of types, from the Go modules and the OpenAPI documents.
(cd "$here" && go run . types "$work/types.json" "$work"/v3/*.json)
pack types.json <"$work/types.json"

# Objects and what Go makes of them, for the tests.
mkdir -p "$here/../testdata"
(cd "$here" && go run . samples "$work/samples.json")
zstd -q -19 --ultra -f -o "$here/../testdata/samples.json.zst" "$work/samples.json"
du -bsh "$out"
