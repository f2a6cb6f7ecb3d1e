#!/usr/bin/env bash
# Trains on two ranks that are connected by a network: two network namespaces, each with its own address, joined by a
# virtual cable. Needs root and iproute2. Usage: two_namespaces.sh PYTHON OUT [arguments of `npmatch train`]
set -euo pipefail
python=$1 out=$2
shift 2
one=npmatch-one-$$ two=npmatch-two-$$ cable=np$$
children=()
clean_up() {
    for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
    ip netns del "$one" 2>/dev/null || true
    ip netns del "$two" 2>/dev/null || true
}
trap clean_up EXIT

ip netns add "$one"
ip netns add "$two"
ip link add "${cable}a" netns "$one" type veth peer name "${cable}b" netns "$two"
ip -n "$one" addr add 10.77.0.1/24 dev "${cable}a"
ip -n "$two" addr add 10.77.0.2/24 dev "${cable}b"
for side in "$one ${cable}a" "$two ${cable}b"; do
    ip -n "${side% *}" link set lo up
    ip -n "${side% *}" link set "${side#* }" up
done

# By the host name, gloo would choose the loopback device, so the network interface is given explicitly.
launch() { # namespace, interface, node rank, folder, arguments of train
    local namespace=$1 interface=$2 node_rank=$3 folder=$4
    shift 4
    exec ip netns exec "$namespace" env OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME="$interface" \
        "$python" -m torch.distributed.run --nnodes=2 --node-rank="$node_rank" --nproc-per-node=1 \
        --master-addr=10.77.0.1 --master-port=29511 -m npmatch train "$@" --device cpu --out "$folder"
}
# The second node gets a folder that it cannot create: only rank zero writes.
launch "$two" "${cable}b" 1 /nowhere/run "$@" &
children+=($!)
launch "$one" "${cable}a" 0 "$out" "$@" &
children+=($!)
for child in "${children[@]}"; do wait "$child"; done
sent=$(ip -n "$one" -s link show "${cable}a" | awk '/TX:/ {getline; print $1}')
echo "bytes sent over the cable by rank zero: $sent"
children=()
