# What the checks of ops need, found here or fetched: sourced by ops/prometheus/check and ops/deploy/check. What is fetched is kept
# beside the build; nothing is installed. Each ends with 1, and says what is missing, where it cannot be had.

tools="${CARGO_TARGET_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target}/ops-tools"

# promtool from PATH, else Debian's package, unpacked.
find_promtool() {
    command -v promtool && return
    local place="$tools/promtool"
    if [ ! -x "$place/usr/bin/promtool" ]; then
        if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
            echo "promtool is missing: it comes with Prometheus (https://prometheus.io/download)." >&2
            return 1
        fi
        mkdir -p "$place"
        (cd "$place" && apt-get download prometheus >&2 && dpkg-deb --extract prometheus_*.deb .) || {
            echo "promtool is missing, and Debian's package prometheus could not be fetched: apt-get update, or install Prometheus." >&2
            return 1
        }
    fi
    echo "$place/usr/bin/promtool"
}

# Sets PYTHONPATH so that python3 finds PyYAML: the machine's own, else from PyPI, pinned by checksum.
need_pyyaml() {
    python3 -c 'import yaml' 2>/dev/null && return
    local place="$tools/pyyaml"
    if [ ! -d "$place/yaml" ]; then
        cat >"$tools.requirements" <<'PINNED'
PyYAML==6.0.2 \
    --hash=sha256:8824b5a04a04a047e72eea5cec3bc266db09e35de6bdfe34c9436ac5ee27d237 \
    --hash=sha256:ec031d5d2feb36d1d1a24380e4db6d43695f3748343d99434e6f5f9156aaa2ed \
    --hash=sha256:5d225db5a45f21e78dd9358e58a98702a0302f2659a3c6cd320564b75b86f47c \
    --hash=sha256:3ad2a3decf9aaba3d29c8f537ac4b243e36bef957511b4766cb0057d32b0be85 \
    --hash=sha256:1f71ea527786de97d1a0cc0eacd1defc0985dcf6b3f17bb77dcfc8c34bec4dc5 \
    --hash=sha256:80bab7bfc629882493af4aa31a4cfa43a4c57c83813253626916b8c7ada83476 \
    --hash=sha256:0ffe8360bab4910ef1b9e87fb812d8bc0a308b0d0eef8c8f44e0254ab3b07133 \
    --hash=sha256:70b189594dbe54f75ab3a1acec5f1e3faa7e8cf2f1e08d9b561cb41b845f69d5
PINNED
        python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
            --target "$place" --requirement "$tools.requirements" >&2 || {
            echo "PyYAML is missing and pip could not fetch it: install Debian's python3-yaml, or PyYAML for this Python." >&2
            return 1
        }
    fi
    export PYTHONPATH="$place${PYTHONPATH:+:$PYTHONPATH}"
}
